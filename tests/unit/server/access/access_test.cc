#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/key_file.h"
#include "server/access/keyed_access.h"
#include "server/access/quota.h"
#include "server/access/tenant_calls.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "tests/support/fake_engine.h"
#include "tests/unit/server/access/key_lines.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

class Recorder : public EventSink<v1::GenerateEvent> {
 public:
  void OnEvent(const v1::GenerateEvent&) override { ++events; }
  void OnDone(const absl::Status& status) override { done = status; }
  int events = 0;
  absl::Status done = absl::UnknownError("not done");
};

template <typename Event>
class SinkOf : public EventSink<Event> {
 public:
  void OnEvent(const Event&) override {}
  void OnDone(const absl::Status&) override {}
};

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() : path_(absl::StrCat(::testing::TempDir(), "/kvblend_keys_", getpid())) {
    slot_.Serve(&engine_);
  }
  ~AccessTest() override { unlink(path_.c_str()); }

  /// As editors do: what is read is whole.
  void WriteKeys(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    std::rename((path_ + ".new").c_str(), path_.c_str());
  }
  static v1::GenerateRequest Question(const std::string& chunk_namespace = "") {
    v1::GenerateRequest request;
    request.set_namespace_(chunk_namespace);
    request.mutable_prompt()->set_question("why?");
    return request;
  }

  const std::string path_;
  EngineSlot slot_;
  EngineCalls calls_{&slot_, {.engine_options = {}, .max_message_bytes = 0}};
  testing::FakeEngine engine_;
};

TEST_F(AccessTest, ATenantSeesItsNamespaceOnly) {
  const ChunkKey ours = engine_.StoreChunk("a", 1, 3), theirs = engine_.StoreChunk("b", 2, 3);
  const auto a =
      MakeTenantCalls(&calls_, {.name = "ta", .chunk_namespace = "a"}, std::make_shared<Quota>(Tenant()));
  v1::ListChunksRequest list;
  EXPECT_EQ(a->List(list)->chunks_size(), 1);
  EXPECT_EQ(a->List(list)->chunks(0).key(), ours.ToHex());
  list.set_namespace_("b");
  EXPECT_EQ(a->List(list).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(a->List(list).status().message()), HasSubstr("namespace is 'b'; allowed: 'a'"));

  v1::StatChunksRequest stat;
  stat.add_keys(theirs.ToHex());
  EXPECT_EQ(a->Stat(stat)->missing_keys_size(), 1);
  v1::DeleteChunksRequest removal;
  removal.add_keys(theirs.ToHex());
  EXPECT_EQ(a->Delete(removal)->deleted(), 0);
  removal.clear_keys();
  removal.set_all(true);
  EXPECT_EQ(a->Delete(removal)->deleted(), 1);
  removal.set_namespace_("b");
  EXPECT_FALSE(a->Delete(removal).ok());
  v1::PinChunksRequest pin;
  pin.add_keys(theirs.ToHex());
  EXPECT_EQ(a->Pin(pin)->changed(), 0);
  pin.set_namespace_("b");
  EXPECT_FALSE(a->Pin(pin).ok());
  EXPECT_EQ(engine_.chunk_store().List("b", "", 10)->chunks.size(), 1);

  v1::PutChunksRequest put;
  put.set_namespace_("b");
  EXPECT_FALSE(a->Put(put, {}, nullptr).ok());
  v1::ScoreRequest score;
  score.set_namespace_("b");
  EXPECT_FALSE(a->Score(score, {}, nullptr).ok());
  v1::PrefetchChunksRequest prefetch;
  prefetch.set_namespace_("b");
  EXPECT_FALSE(a->Prefetch(prefetch).ok());
  v1::SplitDocumentRequest split;
  split.set_namespace_("b");
  EXPECT_FALSE(a->Split(split, {}).ok());
  EXPECT_FALSE(a->Generate(Question("b"), {}, std::make_shared<Recorder>()).ok());
}

TEST_F(AccessTest, RequestsHaveTheTenantsNamespaceTurnAndQuota) {
  const Tenant tenant = {
      .name = "ta", .chunk_namespace = "a", .computed_tokens_per_minute = 10, .concurrent_requests = 1};
  const auto quota = std::make_shared<Quota>(tenant);
  const auto a = MakeTenantCalls(&calls_, tenant, quota);
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(a->Generate(Question(), {.client = "someone"}, recorder).ok());
  const auto call = engine_.NextGenerate();
  EXPECT_EQ(call->request.caller.tenant_namespace, "a");
  EXPECT_EQ(call->request.caller.fairness_key, "a\nta");
  EXPECT_THAT(std::string(a->Generate(Question(), {}, recorder).status().message()),
              HasSubstr("1 requests at once"));
  PromptReport report;
  report.computed_tokens = 7;
  report.recomputed_tokens = 2;
  report.reused_tokens = 100;
  call->observer->OnPrompt(report);
  EXPECT_TRUE(quota->TakeRequest(absl::FromUnixSeconds(1)).ok());
  TextDelta delta;
  delta.token_ids.assign(1000, 1);
  call->observer->OnText(delta);
  call->Finish(absl::OkStatus(), GenerateResult());
  EXPECT_FALSE(a->Generate(Question(), {}, recorder).ok()) << "1,009 tokens were computed";
  EXPECT_EQ(recorder->events, 3);
  EXPECT_TRUE(recorder->done.ok());
  quota->SetLimits({.name = "ta", .chunk_namespace = "a", .concurrent_requests = 1});
  ASSERT_TRUE(a->Generate(Question(), {}, recorder).ok()) << "the place of the one that ended";
  engine_.NextGenerate()->Finish(absl::OkStatus(), GenerateResult());
  engine_.RefuseWith(absl::ResourceExhaustedError("full"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(std::string(a->Generate(Question(), {}, recorder).status().message()),
                HasSubstr("is no room"))
        << "a refused one takes no place";
  }
}

TEST_F(AccessTest, RequestsThatBeginTogetherDoNotAllFindTheLimitUnused) {
  const Tenant tenant = {.name = "t", .chunk_namespace = "a", .computed_tokens_per_minute = 10'000};
  const auto quota = std::make_shared<Quota>(tenant);
  const auto calls = MakeTenantCalls(&calls_, tenant, quota);
  const auto recorder = std::make_shared<Recorder>();
  v1::GenerateRequest request = Question();
  // By its bytes 1,000 tokens, in every part of the prompt, and 1,000 of the answer.
  request.mutable_sampling()->set_max_tokens(1000);
  const std::string part(800, 'x');
  request.mutable_prompt()->set_question(part);
  request.mutable_prompt()->set_system_text(part);
  request.mutable_prompt()->add_chunks(part);
  v1::Turn& turn = *request.mutable_prompt()->add_history();
  turn.set_text(part);
  turn.add_chunks(part);

  std::atomic<int> accepted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&] { accepted += calls->Generate(request, {}, std::make_shared<Recorder>()).ok() ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accepted, 5) << "of 2,000 tokens each";
  std::vector<std::shared_ptr<testing::FakeGenerate>> running;
  for (int i = 0; i < 5; ++i) running.push_back(engine_.NextGenerate());

  // One ends well, having computed nothing, one badly, one reused its prompt, and one is cancelled.
  const auto accepts = [&](int times) {
    for (int i = 0; i < times; ++i) {
      if (!calls->Generate(request, {}, recorder).ok()) return false;
      running.push_back(engine_.NextGenerate());
    }
    const absl::Status refused = calls->Generate(request, {}, recorder).status();
    return absl::IsResourceExhausted(refused) && RetryDelayOf(refused).has_value();
  };
  EXPECT_TRUE(accepts(0));
  running[0]->Finish(absl::OkStatus(), GenerateResult());
  EXPECT_TRUE(accepts(1));
  running[1]->Finish(absl::InternalError("broken"), GenerateResult());
  EXPECT_TRUE(accepts(1));
  running[2]->observer->OnPrompt({});
  EXPECT_TRUE(accepts(0)) << "1,000 are free";
  running[3]->observer->OnPrompt({});
  EXPECT_TRUE(accepts(1));
  running[4]->Finish(absl::CancelledError("gone"), GenerateResult());
  EXPECT_TRUE(accepts(1));
  engine_.RefuseWith(absl::UnavailableError("full"));
  running[2]->Finish(absl::OkStatus(), GenerateResult());
  running[3]->Finish(absl::OkStatus(), GenerateResult());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(calls->Generate(request, {}, recorder).status().message(), "full")
        << "a refused one holds nothing";
  }
  engine_.RefuseWith(absl::OkStatus());
  EXPECT_TRUE(accepts(1));
  for (size_t i = 5; i < running.size(); ++i) running[i]->Finish(absl::OkStatus(), GenerateResult());

  // Other calls that compute have estimates as well.
  v1::ScoreRequest score;
  *score.mutable_prompt() = request.prompt();
  score.set_continuation_text(std::string(4 * 8000, 'x'));
  v1::PutChunksRequest put;
  put.add_chunks(std::string(4 * 600, 'x'));
  put.add_chunks(std::string(4 * 400, 'x'));
  ASSERT_TRUE(calls->Score(score, {}, std::make_shared<SinkOf<v1::ScoreEvent>>()).ok());
  const auto put_sink = std::make_shared<SinkOf<v1::PutChunkProgress>>();
  ASSERT_TRUE(calls->Put(put, {}, put_sink).ok());
  EXPECT_FALSE(calls->Put(put, {}, put_sink).ok());
  const auto running_put = engine_.NextPutChunks();
  PutChunkProgress progress;
  progress.already_present = true;
  for (const int32_t tokens : {600, 400}) {
    progress.num_tokens = tokens;
    running_put->observer->OnProgress(progress);
  }
  ASSERT_TRUE(calls->Put(put, {}, put_sink).ok()) << "nothing was computed, and nothing is to come";
  EXPECT_FALSE(calls->Put(put, {}, put_sink).ok());
  engine_.NextScore()->Finish(absl::OkStatus());
  running_put->Finish(absl::OkStatus());
  engine_.NextPutChunks()->Finish(absl::OkStatus());
}

TEST_F(AccessTest, ReadableNamespacesAreReadAndNoMore) {
  const ChunkKey shared = engine_.StoreChunk("corpus", 1, 3);
  engine_.StoreChunk("b", 2, 3);
  const auto a = MakeTenantCalls(&calls_, {.name = "a", .chunk_namespace = "a", .read = {"corpus", "more"}},
                                 std::make_shared<Quota>(Tenant()));
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(a->Generate(Question(), {}, recorder).ok());
  const auto call = engine_.NextGenerate();
  EXPECT_EQ(call->request.caller.tenant_namespace, "a");
  EXPECT_THAT(call->request.blend.read_namespaces, ::testing::ElementsAre("corpus", "more"));
  call->Finish(absl::OkStatus(), GenerateResult());
  v1::GenerateRequest request = Question();
  request.mutable_blend()->add_read_namespaces("more");
  ASSERT_TRUE(a->Generate(request, {}, recorder).ok());
  const auto less = engine_.NextGenerate();
  EXPECT_THAT(less->request.blend.read_namespaces, ::testing::ElementsAre("more"));
  less->Finish(absl::OkStatus(), GenerateResult());
  request.mutable_blend()->add_read_namespaces("b");
  const absl::Status refused = a->Generate(request, {}, recorder).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("blend.read_namespaces has 'b'; allowed: those that the key may read (corpus, more)"));
  v1::ScoreRequest score;
  score.mutable_blend()->add_read_namespaces("b");
  EXPECT_EQ(a->Score(score, {}, nullptr).status().code(), absl::StatusCode::kPermissionDenied);
  v1::PrefetchChunksRequest prefetch;
  prefetch.add_read_namespaces("b");
  EXPECT_EQ(a->Prefetch(prefetch).status().code(), absl::StatusCode::kPermissionDenied);

  v1::ListChunksRequest list;
  list.set_namespace_("corpus");
  EXPECT_EQ(a->List(list)->chunks_size(), 1);
  v1::StatChunksRequest stat;
  stat.set_namespace_("corpus");
  stat.add_keys(shared.ToHex());
  EXPECT_EQ(a->Stat(stat)->chunks_size(), 1);
  // What others ask would show in how the corpus is used.
  ASSERT_GT(calls_.Stat(stat)->chunks(0).last_used_unix_seconds(), 0);
  for (const v1::ChunkInfo& seen : {a->Stat(stat)->chunks(0), a->List(list)->chunks(0)}) {
    EXPECT_EQ(seen.last_used_unix_seconds(), 0);
    EXPECT_EQ(seen.hits(), 0);
    EXPECT_EQ(seen.tier(), v1::TIER_UNSPECIFIED);
    EXPECT_GT(seen.created_unix_seconds(), 0);
  }
  const auto admin =
      MakeTenantCalls(&calls_, {.name = "b", .chunk_namespace = "b", .admin = true, .read = {"corpus"}},
                      std::make_shared<Quota>(Tenant()));
  EXPECT_GT(admin->Stat(stat)->chunks(0).last_used_unix_seconds(), 0);
  v1::DeleteChunksRequest removal;
  removal.set_namespace_("corpus");
  removal.set_all(true);
  v1::PinChunksRequest pin;
  pin.set_namespace_("corpus");
  pin.add_keys(shared.ToHex());
  v1::PutChunksRequest put;
  put.set_namespace_("corpus");
  EXPECT_EQ(a->Delete(removal).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(a->Pin(pin).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(a->Put(put, {}, nullptr).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(a->Generate(Question("corpus"), {}, recorder).status().code(),
            absl::StatusCode::kPermissionDenied)
      << "it would store what is missing there";
  EXPECT_FALSE(engine_.chunk_store().Stat("corpus", shared)->pinned);
}

TEST_F(AccessTest, PrioritiesAreTheTenants) {
  const auto a = MakeTenantCalls(
      &calls_,
      {.name = "a", .chunk_namespace = "a", .priority = Priority::kLow, .max_priority = Priority::kNormal},
      std::make_shared<Quota>(Tenant()));
  const auto recorder = std::make_shared<Recorder>();
  const auto priority_of = [&](v1::Priority asked) {
    v1::GenerateRequest request = Question();
    request.set_priority(asked);
    EXPECT_TRUE(a->Generate(request, {}, recorder).ok());
    const auto call = engine_.NextGenerate();
    const Priority priority = call->request.caller.priority;
    call->Finish(absl::OkStatus(), GenerateResult());
    return priority;
  };
  EXPECT_EQ(priority_of(v1::PRIORITY_UNSPECIFIED), Priority::kLow);
  EXPECT_EQ(priority_of(v1::PRIORITY_LOW), Priority::kLow);
  EXPECT_EQ(priority_of(v1::PRIORITY_NORMAL), Priority::kNormal);
  v1::GenerateRequest high = Question();
  high.set_priority(v1::PRIORITY_HIGH);
  const absl::Status refused = a->Generate(high, {}, recorder).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("priority is 'high'; allowed: at most the key's, 'normal'"));
  v1::PutChunksRequest put;
  put.set_priority(v1::PRIORITY_HIGH);
  EXPECT_EQ(a->Put(put, {}, nullptr).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(AccessTest, InfoTellsNothingOfOthers) {
  engine_.StoreChunk("b", 1, 3);
  const auto quota = std::make_shared<Quota>(Tenant());
  const auto info = [&](bool admin) {
    return *MakeTenantCalls(&calls_, {.name = "a", .chunk_namespace = "a", .admin = admin}, quota)
                ->GetInfo({});
  };
  EXPECT_EQ(info(true).store().entries(), 1);
  v1::GetInfoResponse before = info(false);
  engine_.StoreChunk("b", 2, 3);
  v1::GetInfoResponse after = info(false);
  before.clear_uptime_seconds();
  after.clear_uptime_seconds();
  EXPECT_EQ(before.DebugString(), after.DebugString());
  EXPECT_GT(after.store().budget_bytes(), 0);
  // What the caller's own chunks may take, and nobody else's.
  EXPECT_EQ(after.store().namespace_byte_limit(), after.store().budget_bytes());
  engine_.chunks().LimitNamespaces({{"a", 77}, {"b", 88}});
  EXPECT_EQ(info(false).store().namespace_byte_limit(), 77);
  EXPECT_EQ(info(true).store().namespace_byte_limit(), 77);
  v1::GetInfoRequest of_b;
  of_b.set_namespace_("b");
  EXPECT_EQ(
      MakeTenantCalls(&calls_, {.name = "a", .chunk_namespace = "a"}, quota)->GetInfo(of_b).status().code(),
      absl::StatusCode::kPermissionDenied);
  // Nor when others ask, and how much: of the load only how many pages there are.
  EXPECT_GT(info(true).load().requests_waiting(), 0);
  EXPECT_FALSE(info(true).totals_left_out());
  EXPECT_TRUE(after.totals_left_out());
  v1::Load pages;
  pages.set_pages_total(after.load().pages_total());
  EXPECT_GT(pages.pages_total(), 0);
  EXPECT_EQ(after.load().DebugString(), pages.DebugString());
}

TEST_F(AccessTest, StoreLimitsReachTheStoreAndChangeWithTheFile) {
  EngineSlot loading;
  loading.LimitNamespaces({{"n", 1}});
  const auto stored = [&](std::string_view name) {
    return static_cast<int>(engine_.chunk_store().List(name, "", 100)->chunks.size());
  };
  engine_.StoreChunk("n", 1, 3);
  loading.Serve(&engine_);
  EXPECT_EQ(stored("n"), 0) << "limits that came before the engine";
  loading.LimitNamespaces({});
  for (int i = 0; i < 3; ++i) engine_.StoreChunk("n", i, 3);
  EXPECT_EQ(stored("n"), 3);

  WriteKeys(LineOf("k", R"("tenant": "t", "namespace": "n")"));
  const auto access = KeyedAccess::Open(
      path_, &calls_, [&](const std::map<std::string, int64_t>& bytes) { slot_.LimitNamespaces(bytes); });
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(stored("n"), 3);
  WriteKeys(LineOf("k", R"("tenant": "t", "namespace": "n", "store_bytes": 1)"));
  while (stored("n") > 0) std::this_thread::yield();
}

// Keeping to new limits may take a slow disk long. Meanwhile the file may change again.
TEST_F(AccessTest, AKeyThatIsTakenOutOpensNothingWhileChunksAreRemoved) {
  WriteKeys(LineOf("old", R"("tenant": "t", "namespace": "n")"));
  absl::Notification removes, go_on, removes_more;
  const auto access = KeyedAccess::Open(path_, &calls_, [&](const std::map<std::string, int64_t>& bytes) {
    if (bytes.empty()) return;
    if (bytes.at("n") == 3) removes_more.Notify();
    if (bytes.at("n") != 1) return;
    removes.Notify();
    go_on.WaitForNotification();
  });
  ASSERT_TRUE(access.ok()) << access.status();
  WriteKeys(LineOf("new", R"("tenant": "t", "namespace": "n", "store_bytes": 1)"));
  removes.WaitForNotification();
  EXPECT_EQ((*access)->Admit("Bearer old").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE((*access)->Admit("Bearer new").ok());
  for (int bytes : {2, 3}) {
    const std::string key = absl::StrCat("newer", bytes);
    WriteKeys(LineOf(key, absl::StrCat(R"("tenant": "t", "namespace": "n", "store_bytes": )", bytes)));
    while (!(*access)->Admit("Bearer " + key).ok()) std::this_thread::yield();
    EXPECT_EQ((*access)->Admit("Bearer new").status().code(), absl::StatusCode::kUnauthenticated);
  }
  go_on.Notify();
  removes_more.WaitForNotification();
}

TEST_F(AccessTest, OnlyAdminsSteerLearning) {
  const auto quota = std::make_shared<Quota>(Tenant());
  EXPECT_EQ(MakeTenantCalls(&calls_, {.name = "t"}, quota)->UpdateCorrection({}).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(MakeTenantCalls(&calls_, {.name = "t", .admin = true}, quota)->UpdateCorrection({}).ok());
}

TEST_F(AccessTest, KeysAreReadAgainWhenTheFileChanges) {
  EXPECT_THAT(std::string(KeyedAccess::Open(path_, &calls_).status().message()), HasSubstr(path_));
  WriteKeys(LineOf("old", R"("tenant": "t", "namespace": "n", "requests_per_minute": 3)"));
  const auto access = KeyedAccess::Open(path_, &calls_);
  ASSERT_TRUE(access.ok()) << access.status();
  const auto code = [&](const std::string& header) { return (*access)->Admit(header).status().code(); };
  EXPECT_EQ(code(""), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("Basic old"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("Bearer olds"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("Bearer old"), absl::StatusCode::kOk);
  const auto admitted = (*access)->Admit("bearer  old");
  ASSERT_TRUE(admitted.ok());

  WriteKeys(LineOf("new", R"("tenant": "t", "namespace": "n", "requests_per_minute": 3)"));
  while (code("Bearer old") != absl::StatusCode::kUnauthenticated) std::this_thread::yield();
  EXPECT_TRUE((*admitted)->List({}).ok()) << "what was admitted goes on";
  // What was used of the limits stays used. (Asking with the old key may have taken the rest.)
  absl::StatusCode last = absl::StatusCode::kOk;
  for (int i = 0; i < 2; ++i) last = code("Bearer new");
  EXPECT_EQ(last, absl::StatusCode::kResourceExhausted);
}

TEST_F(AccessTest, AskingForAKeyTakesNothingOfItsLimits) {
  WriteKeys(LineOf("k", R"("tenant": "t", "requests_per_minute": 1)"));
  const auto access = KeyedAccess::Open(path_, &calls_);
  ASSERT_TRUE(access.ok()) << access.status();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*(*access)->TenantOf("Bearer k"), "t");
  EXPECT_EQ((*access)->Use().at("t").requests, 0);
  for (const char* unknown : {"", "Basic k", "Bearer ks"}) {
    EXPECT_EQ((*access)->TenantOf(unknown).status(), (*access)->Admit(unknown).status()) << unknown;
    EXPECT_EQ((*access)->TenantOf(unknown).status().code(), absl::StatusCode::kUnauthenticated) << unknown;
  }
  EXPECT_TRUE((*access)->Admit("Bearer k").ok());
  EXPECT_FALSE((*access)->Admit("Bearer k").ok());
  EXPECT_EQ(*(*access)->TenantOf("Bearer k"), "t") << "known all the same";
}

TEST_F(AccessTest, NeitherAPipeNorADeviceIsRead) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0644), 0);
  for (const auto& [path, what] :
       {std::pair(pipe, "a pipe"), std::pair(std::string("/dev/zero"), "a device")}) {
    const absl::Status status = KeyedAccess::Open(path, &calls_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()),
              absl::StrCat("--api-keys: cannot read ", path, ": it is ", what, "; allowed: a regular file"));
  }
  std::remove(pipe.c_str());
}

TEST_F(AccessTest, UseIsToldOfTheTenantsInTheFile) {
  const std::string t = LineOf("k", R"("tenant": "t", "requests_per_minute": 1)");
  WriteKeys(t + LineOf("another key of it", R"("tenant": "t", "requests_per_minute": 1)") +
            LineOf("u", R"("tenant": "u")"));
  const auto access = KeyedAccess::Open(path_, &calls_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_TRUE((*access)->Admit("Bearer k").ok());
  EXPECT_FALSE((*access)->Admit("Bearer another key of it").ok());
  EXPECT_FALSE((*access)->Admit("Bearer nobody's").ok());
  const std::map<std::string, TenantUse> use = (*access)->Use();
  ASSERT_EQ(use.size(), 2);
  EXPECT_EQ(use.at("t").requests, 2);
  EXPECT_EQ(use.at("t").refused_for_requests, 1);
  EXPECT_EQ(use.at("u").requests, 0);
  WriteKeys(LineOf("u", R"("tenant": "u")"));
  while ((*access)->Use().size() > 1) std::this_thread::yield();
  WriteKeys(t);
  while (!(*access)->Use().contains("t")) std::this_thread::yield();
  EXPECT_EQ((*access)->Use().at("t").requests, 2) << "it goes on from where it was";
}

}  // namespace
}  // namespace kvblend::server
