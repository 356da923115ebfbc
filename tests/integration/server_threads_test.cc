// Calls that take long, beside others.
#include <httplib.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "server/api/routes.h"
#include "server/grpc/call_threads.h"
#include "server/http/http_server.h"
#include "tests/integration/server_fixture.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CallThreadsTest, BoundsWhatWaitsAndDoesAllThatItTook) {
  absl::Notification busy, go_on;
  std::vector<int> done;
  CallThreads threads({.num_threads = 1, .max_waiting = 3, .max_waiting_bytes = 100});
  const auto add = [&](int number, size_t bytes) {
    return threads.Run("", bytes, [&done, number] { done.push_back(number); });
  };
  ASSERT_TRUE(threads.Run("", 1000, [&] { busy.Notify(), go_on.WaitForNotification(); }).ok())
      << "a large one that has nothing before it";
  busy.WaitForNotification();
  EXPECT_TRUE(add(1, 60).ok());
  EXPECT_TRUE(add(2, 40).ok());
  EXPECT_EQ(add(3, 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(add(3, 1).message()), HasSubstr("have 100 bytes, and this one 1; allowed: 100"));
  EXPECT_TRUE(add(4, 0).ok());
  EXPECT_THAT(std::string(add(5, 0).message()), HasSubstr("3 calls wait"));
  go_on.Notify();
  threads.Stop();
  threads.Stop();
  EXPECT_THAT(done, ElementsAre(1, 2, 4));
}

TEST(CallThreadsTest, ThoseWhoWaitTakeTurns) {
  absl::Notification busy, go_on;
  std::vector<std::string> done;
  CallThreads threads({.num_threads = 1});
  ASSERT_TRUE(threads.Run("much", 1, [&] { busy.Notify(), go_on.WaitForNotification(); }).ok());
  busy.WaitForNotification();
  for (const char* call : {"much 1", "much 2", "much 3", "little 1", "other 1", "little 2"}) {
    const std::string name = call;
    ASSERT_TRUE(
        threads.Run(name.substr(0, name.size() - 2), 1, [&done, name] { done.push_back(name); }).ok());
  }
  go_on.Notify();
  threads.Stop();
  EXPECT_THAT(done, ElementsAre("much 1", "little 1", "other 1", "much 2", "little 2", "much 3"));
}

// Splitting never ends before the test says so.
class SlowCalls : public EngineCalls {
 public:
  using EngineCalls::EngineCalls;
  absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                  const CallerContext& caller) override {
    if (getpriority(PRIO_PROCESS, 0) <= usual_nice_) ++in_the_way;
    ++splitting;
    if (until_gone) {
      while (!caller.gone()) std::this_thread::yield();
      ++left;
      return absl::CancelledError("the client has gone");
    }
    go_on.WaitForNotification();
    return EngineCalls::Split(std::move(request), caller);
  }
  std::atomic<int> splitting{0};
  std::atomic<bool> until_gone{false};  // then it ends when its client has gone instead
  std::atomic<int> left{0};
  std::atomic<int> in_the_way{0};  // splits in threads that do not yield to those that compute answers
  absl::Notification go_on;

 private:
  const int usual_nice_ = std::min(getpriority(PRIO_PROCESS, 0), 18);  // 19 is the most
};

struct SlowServer {
  SlowServer() {
    slot_.Serve(&engine_);
    ServiceContext context;
    context.calls = &calls_;
    context.metrics = &metrics_;
    GrpcServerOptions options;
    options.address = "127.0.0.1:0";
    server_ = GrpcServer::Start(options, context).value();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(server_->port()),
                                   grpc::InsecureChannelCredentials());
  }

  grpc::Status Split() {
    v1::SplitDocumentRequest request;
    request.set_text("text");
    request.set_chunk_tokens(2);
    grpc::ClientContext context;
    v1::SplitDocumentResponse response;
    return v1::Chunks::NewStub(channel_)->Split(&context, request, &response);
  }

  Metrics metrics_;
  EngineSlot slot_;
  SlowCalls calls_{&slot_, {.engine_options = {}, .max_message_bytes = 0}};
  testing::FakeEngine engine_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

class SlowCallsTest : public ::testing::Test, protected SlowServer {};

TEST_F(SlowCallsTest, StreamsAndQuickCallsGoOnMeanwhile) {
  constexpr int kSplits = 40;  // more than gRPC has threads
  std::vector<std::thread> splits;
  std::atomic<int> answered{0};
  for (int i = 0; i < kSplits; ++i) {
    splits.emplace_back([&] { answered += Split().ok() ? 1 : 0; });
  }
  while (calls_.splitting < 4) std::this_thread::yield();  // all threads for them are busy

  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));  // instead of hanging
  v1::GenerateRequest request;
  request.mutable_prompt()->set_question("why?");
  const auto reader = v1::Inference::NewStub(channel_)->Generate(&context, request);
  const auto call = engine_.NextGenerate();
  EXPECT_NE(call, nullptr);
  v1::GenerateEvent event;
  for (int i = 0; call != nullptr && i < 20; ++i) {
    call->observer->OnText({});
    EXPECT_TRUE(reader->Read(&event));
  }
  if (call != nullptr) call->Finish(absl::OkStatus(), GenerateResult());
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());

  grpc::ClientContext pin_context, prefetch_context;
  for (grpc::ClientContext* tiers : {&pin_context, &prefetch_context}) {
    tiers->set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  }
  v1::PinChunksRequest pin;
  pin.add_keys(std::string(64, '0'));
  v1::PinChunksResponse pinned;
  EXPECT_TRUE(v1::Chunks::NewStub(channel_)->Pin(&pin_context, pin, &pinned).ok());
  v1::PrefetchChunksResponse prefetched;
  EXPECT_TRUE(v1::Chunks::NewStub(channel_)->Prefetch(&prefetch_context, {}, &prefetched).ok());
  grpc::ClientContext info_context;
  info_context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  v1::GetInfoResponse info;
  EXPECT_TRUE(v1::Admin::NewStub(channel_)->GetInfo(&info_context, {}, &info).ok());
  calls_.go_on.Notify();
  for (std::thread& split : splits) split.join();
  EXPECT_EQ(answered, kSplits);
  EXPECT_EQ(calls_.in_the_way, 0);
}

TEST_F(SlowCallsTest, OverHttpToo) {
  HttpServerOptions options;
  options.address = {"127.0.0.1", 0};
  const auto api =
      HttpServer::Start(options, ApiRoutes({.calls = &calls_, .metrics = &metrics_, .model_id = "m"}),
                        ApiErrorPage)
          .value();
  const auto status_of = [&](const std::string& path, const std::string& body) {
    httplib::Client client("127.0.0.1", api->port());
    client.set_read_timeout(60);  // instead of hanging
    const auto result = body.empty() ? client.Get(path) : client.Post(path, body, "application/json");
    return result ? result->status : 0;
  };
  constexpr int kSplits = 10;  // more than there are threads for them
  std::vector<std::thread> splits;
  std::atomic<int> answered{0};
  for (int i = 0; i < kSplits; ++i) {
    splits.emplace_back([&] {
      answered += status_of("/v1/chunks/split", R"({"text": "text", "chunk_tokens": 2})") == 200 ? 1 : 0;
    });
  }
  while (calls_.splitting < 4) std::this_thread::yield();
  std::thread asker([&] {
    EXPECT_EQ(status_of("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "why?"}]})"),
              200);
  });
  const auto call = engine_.NextGenerate();
  EXPECT_NE(call, nullptr);
  if (call != nullptr) call->Finish(absl::OkStatus(), GenerateResult());
  asker.join();
  EXPECT_EQ(status_of("/v1/info", ""), 200);
  EXPECT_EQ(status_of("/v1/chunks/pin", absl::StrCat(R"({"keys": [")", std::string(64, '0'), "\"]}")), 200);
  EXPECT_EQ(status_of("/v1/chunks/prefetch", "{}"), 200);
  calls_.go_on.Notify();
  for (std::thread& split : splits) split.join();
  EXPECT_EQ(answered, kSplits);
  EXPECT_EQ(calls_.in_the_way, 0);
}

TEST_F(SlowCallsTest, ASplitLearnsThatItsClientHasGone) {
  calls_.until_gone = true;
  grpc::ClientContext context;
  std::thread over_grpc([&] {
    v1::SplitDocumentResponse response;
    EXPECT_EQ(v1::Chunks::NewStub(channel_)->Split(&context, {}, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  while (calls_.splitting < 1) std::this_thread::yield();
  context.TryCancel();
  over_grpc.join();
  while (calls_.left < 1) std::this_thread::yield();

  HttpServerOptions options;
  options.address = {"127.0.0.1", 0};
  const auto api =
      HttpServer::Start(options, ApiRoutes({.calls = &calls_, .metrics = &metrics_, .model_id = "m"}),
                        ApiErrorPage)
          .value();
  httplib::Client client("127.0.0.1", api->port());
  std::thread over_http([&] { EXPECT_FALSE(client.Post("/v1/chunks/split", "{}", "application/json")); });
  while (calls_.splitting < 2) std::this_thread::yield();
  client.stop();
  over_http.join();
  while (calls_.left < 2) std::this_thread::yield();
}

/// Ends a server of which some calls work and others wait for a thread; returns how many were begun.
int BegunBeforeTheEnd(SlowServer& server) {
  std::vector<std::thread> splits;
  for (int i = 0; i < 20; ++i) splits.emplace_back([&] { server.Split(); });
  while (server.calls_.splitting < 4) std::this_thread::yield();
  std::thread end([&] { server.server_->Shutdown(absl::Now()); });
  for (std::thread& split : splits) split.join();  // cancelled: their clients do not wait
  server.calls_.go_on.Notify();
  end.join();
  return server.calls_.splitting;
}

// A client may know of its call's end before the thread that tells the server's side of it has come to that,
// and then a call is begun in vain: once in a hundred times. Were it never looked at, each time.
TEST(SlowServerTest, EndsWithCallsThatWaitAndCallsThatWork) {
  int begun = 0;
  for (int attempt = 0; attempt < 10 && begun != 4; ++attempt) {
    SlowServer server;
    begun = BegunBeforeTheEnd(server);
  }
  EXPECT_EQ(begun, 4) << "whose clients had gone were not begun";
}

}  // namespace
}  // namespace kvblend::server
