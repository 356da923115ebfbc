// Calls over a fake engine; tests/integration has the same behind gRPC.
#include "server/calls/engine_calls.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/calls/engine_slot.h"
#include "tests/support/fake_engine.h"
#include "tests/support/memory_lower_tier.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Event>
class Recorder : public EventSink<Event> {
 public:
  void OnEvent(const Event& event) override { events.push_back(event); }
  void OnDone(const absl::Status& status) override { statuses.push_back(status); }
  std::vector<Event> events;
  std::vector<absl::Status> statuses;
};

class EngineCallsTest : public ::testing::Test {
 protected:
  EngineCallsTest() { slot_.Serve(&engine_); }

  static v1::GenerateRequest Question(const std::string& tenant = "") {
    v1::GenerateRequest request;
    request.set_namespace_(tenant);
    request.mutable_prompt()->set_question("why?");
    return request;
  }
  Caller CallerOf(const v1::GenerateRequest& request, const CallerContext& caller) {
    const auto recorder = std::make_shared<Recorder<v1::GenerateEvent>>();
    EXPECT_TRUE(calls_.Generate(request, caller, recorder).ok());
    const auto call = engine_.NextGenerate();
    call->Finish(absl::OkStatus(), GenerateResult());
    return call->request.caller;
  }

  testing::FakeEngine engine_;
  EngineSlot slot_;
  EngineCalls calls_{&slot_, {.engine_options = {}, .max_message_bytes = 5}};
};

TEST_F(EngineCallsTest, ClientAndNamespaceTakeTurns) {
  const std::string key = CallerOf(Question("a"), {.client = "10.0.0.7"}).fairness_key;
  EXPECT_EQ(CallerOf(Question("a"), {.client = "10.0.0.7"}).fairness_key, key);
  EXPECT_NE(CallerOf(Question("b"), {.client = "10.0.0.7"}).fairness_key, key);
  EXPECT_NE(CallerOf(Question("a"), {.client = "10.0.0.8"}).fairness_key, key);
  const absl::Time deadline = absl::FromUnixSeconds(7);
  EXPECT_EQ(CallerOf(Question(), {.client = "", .deadline = deadline}).deadline, deadline);
}

TEST_F(EngineCallsTest, AnAnswersEventsComeInOrderAndOnlySuccessIsFinished) {
  for (const absl::Status& status : {absl::OkStatus(), absl::CancelledError("stopped")}) {
    const auto recorder = std::make_shared<Recorder<v1::GenerateEvent>>();
    ASSERT_TRUE(calls_.Generate(Question(), {}, recorder).ok());
    const auto call = engine_.NextGenerate();
    PromptReport report;
    report.prompt_tokens = 3;
    call->observer->OnPrompt(report);
    call->observer->OnText({.text = "a", .token_ids = {1}, .logprobs = {}, .top_logprobs = {}});
    call->Finish(status, GenerateResult{.finish_reason = FinishReason::kMaxTokens, .stop_string = ""});
    ASSERT_EQ(recorder->events.size(), status.ok() ? 3u : 2u);
    EXPECT_EQ(recorder->events[0].prompt().prompt_tokens(), 3);
    EXPECT_EQ(recorder->events[1].text().text(), "a");
    if (status.ok()) {
      EXPECT_EQ(recorder->events[2].finished().reason(), v1::FINISH_REASON_MAX_TOKENS);
    }
    EXPECT_THAT(recorder->statuses, ElementsAre(status));
  }
}

TEST_F(EngineCallsTest, RefusedRequestsNeverReachTheSink) {
  const auto recorder = std::make_shared<Recorder<v1::GenerateEvent>>();
  EXPECT_EQ(calls_.Generate({}, {}, recorder).status().code(), absl::StatusCode::kInvalidArgument);
  engine_.RefuseWith(absl::ResourceExhaustedError("queue full"));
  EXPECT_EQ(calls_.Generate(Question(), {}, recorder).status().code(), absl::StatusCode::kResourceExhausted);
  slot_.Drain();
  EXPECT_THAT(std::string(calls_.Generate(Question(), {}, recorder).status().message()),
              HasSubstr("shutting down"));
  EXPECT_EQ(calls_.GetInfo({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls_.CheckHealth().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(recorder->statuses.empty());
}

TEST_F(EngineCallsTest, PagesAndKeysHaveLimits) {
  v1::ListChunksRequest list;
  for (const int size : {0, 1001}) {
    list.set_page_size(size);
    EXPECT_EQ(calls_.List(list).status(),
              absl::InvalidArgumentError("page_size is " + std::to_string(size) + "; allowed: 1 to 1000"));
  }
  v1::DeleteChunksRequest remove;
  EXPECT_THAT(std::string(calls_.Delete(remove).status().message()), HasSubstr("keys has 0 keys"));
  remove.add_keys(std::string(64, '0'));
  remove.set_all(true);
  EXPECT_THAT(std::string(calls_.Delete(remove).status().message()), HasSubstr("none, as all is set"));
}

TEST(EngineCallsDeleteTest, WhatATierDidNotDeleteIsSaid) {
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  std::vector<std::unique_ptr<store::LowerTier>> lower;
  lower.push_back(test_support::MakeMemoryLowerTier(disk));
  testing::FakeEngine engine(std::move(lower));
  EngineSlot slot;
  slot.Serve(&engine);
  EngineCalls calls(&slot, {.engine_options = {}, .max_message_bytes = 5});
  v1::DeleteChunksRequest remove, clear;
  clear.set_all(true);
  std::vector<std::string> keys;
  for (const int token : {1, 2}) keys.push_back(engine.StoreChunk("", token, 7, "").ToHex());
  auto& chunk_store = static_cast<store::ChunkStore&>(engine.chunks());
  ASSERT_TRUE(chunk_store.FlushWrites(absl::InfiniteFuture()).ok());
  for (const std::string& key : keys) remove.add_keys(key);
  disk->erase_fault = [&](const ChunkKey& key) {
    return key.ToHex() == keys[1] ? absl::UnavailableError("out of reach") : absl::OkStatus();
  };
  const v1::DeleteChunksResponse removed = *calls.Delete(remove);
  EXPECT_EQ(removed.deleted(), 1);
  EXPECT_EQ(removed.failed(), 1);
  EXPECT_THAT(removed.failed_keys(), ElementsAre(keys[1]));
  EXPECT_EQ(removed.failure(), "disk: out of reach");
  EXPECT_THAT(removed.missing_keys(), ElementsAre());

  for (const int token : {1, 2}) engine.StoreChunk("", token, 7, "");
  ASSERT_TRUE(chunk_store.FlushWrites(absl::InfiniteFuture()).ok());
  const v1::DeleteChunksResponse cleared = *calls.Delete(clear);
  EXPECT_EQ(cleared.deleted(), 1);
  EXPECT_EQ(cleared.failed(), 1);
  EXPECT_THAT(cleared.failed_keys(), ElementsAre(keys[1]));
  EXPECT_EQ(cleared.failure(), "disk: out of reach");
}

TEST_F(EngineCallsTest, NamespacesHaveTheSameLimitInCallsAboutWhatIsStored) {
  const absl::Status too_long = absl::InvalidArgumentError("namespace has 129 bytes; allowed: at most 128");
  const auto ask = [&](const std::string& name, const auto& expect) {
    v1::StatChunksRequest stat;
    v1::DeleteChunksRequest remove, clear;
    v1::PinChunksRequest pin;
    v1::ListChunksRequest list;
    for (auto* keys : {stat.mutable_keys(), remove.mutable_keys(), pin.mutable_keys()}) {
      keys->Add(std::string(64, '0'));
    }
    clear.set_all(true);
    for (std::string* field :
         {stat.mutable_namespace_(), remove.mutable_namespace_(), clear.mutable_namespace_(),
          pin.mutable_namespace_(), list.mutable_namespace_()}) {
      *field = name;
    }
    expect(calls_.Stat(stat).status());
    expect(calls_.Delete(remove).status());
    expect(calls_.Delete(clear).status());
    expect(calls_.Pin(pin).status());
    expect(calls_.List(list).status());
  };
  ask(std::string(128, 'n'), [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; });
  ask(std::string(129, 'n'), [&](const absl::Status& status) { EXPECT_EQ(status, too_long); });
}

// The slot passes the pointer on and never follows it.
Engine* SomeEngine() {
  static int place = 0;
  return reinterpret_cast<Engine*>(&place);
}

TEST(EngineSlotTest, StartsServesDrainsAndNeverGoesBack) {
  EngineSlot slot;
  EXPECT_EQ(slot.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(slot.NotServingReason(), HasSubstr("starting"));
  slot.Serve(SomeEngine());
  ASSERT_TRUE(slot.Get().ok());
  EXPECT_EQ(*slot.Get(), SomeEngine());
  EXPECT_EQ(slot.NotServingReason(), "");
  slot.Drain();
  EXPECT_EQ(slot.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(slot.NotServingReason(), HasSubstr("shutting down"));
  slot.Serve(SomeEngine());
  EXPECT_FALSE(slot.Get().ok());
}

}  // namespace
}  // namespace kvblend::server
