// Calls of a server of the test's own that says what the test wants.
#include "server/grpc/grpc_calls.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/cli/client.h"
#include "tests/support/message_text.h"

namespace kvblend::server {
namespace {

using test_support::FromText;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class FakeInference : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    last_generate = *request;
    writer->Write(FromText<v1::GenerateEvent>(R"(
        prompt { prompt_tokens: 42  policy: POLICY_HKVD
                 chunks { source: CHUNK_SOURCE_OTHER_ANCHOR  tier: TIER_HOST_MEMORY } })"));
    writer->Write(FromText<v1::GenerateEvent>(R"(
        text { text: "Hi"  token_ids: 3  logprobs { token_id: 3  logprob: -0.25 }
               top_logprobs { tokens { token_id: 4 } } })"));
    if (request->prompt().question() == "wait") {
      streaming.Notify();
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
      return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    }
    if (request->prompt().question() == "fail")
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
    writer->Write(FromText<v1::GenerateEvent>(R"(
        finished { reason: FINISH_REASON_STOP_STRING  stop_string: "!"  seed: 99
                   usage { completion_tokens: 1 }  timings { time_to_first_token_seconds: 0.5 } })"));
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest* request,
                     grpc::ServerWriter<v1::ScoreEvent>* writer) override {
    last_score = *request;
    v1::ScoreEvent event;
    event.mutable_prompt()->set_prompt_tokens(7);
    writer->Write(event);
    event.mutable_token()->set_logprob(-1.5);
    // Larger than gRPC's default limit of 4 MiB for a message.
    event.mutable_token()->mutable_distribution()->Resize((5 << 20) / 4, 0.25f);
    writer->Write(event);
    return grpc::Status::OK;
  }

  v1::GenerateRequest last_generate;
  v1::ScoreRequest last_score;
  absl::Notification streaming;
};

class FakeChunks : public v1::Chunks::Service {
 public:
  grpc::Status Put(grpc::ServerContext*, const v1::PutChunksRequest* request,
                   grpc::ServerWriter<v1::PutChunkProgress>* writer) override {
    last_put = *request;
    for (int i = 0; i < request->chunks_size(); ++i) {
      v1::PutChunkProgress progress;
      progress.set_index(i);
      progress.set_key("k");
      progress.set_already_present(i == 1);
      writer->Write(progress);
    }
    return grpc::Status::OK;
  }
  grpc::Status Split(grpc::ServerContext* context, const v1::SplitDocumentRequest* request,
                     v1::SplitDocumentResponse* response) override {
    last_split = *request;
    if (request->text() == "refuse") {
      context->AddTrailingMetadata("retry-after-ms", "250");
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many");
    }
    while (request->text() == "wait" && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    response->add_chunks()->set_key("k");
    response->mutable_chunks(0)->set_end_byte(4);
    response->set_next_byte(4);
    return grpc::Status::OK;
  }
  grpc::Status Stat(grpc::ServerContext*, const v1::StatChunksRequest* request,
                    v1::StatChunksResponse* response) override {
    response->add_chunks()->set_key(request->keys(0));
    response->mutable_chunks(0)->set_label(request->namespace_());
    response->add_missing_keys("gone");
    return grpc::Status::OK;
  }
  grpc::Status List(grpc::ServerContext*, const v1::ListChunksRequest* request,
                    v1::ListChunksResponse* response) override {
    response->add_chunks()->set_num_tokens(request->has_page_size() ? request->page_size() : -1);
    response->set_next_page_token(request->page_token() + "+");
    return grpc::Status::OK;
  }
  grpc::Status Delete(grpc::ServerContext*, const v1::DeleteChunksRequest* request,
                      v1::DeleteChunksResponse* response) override {
    response->set_deleted(request->all() ? 1000 : request->keys_size());
    return grpc::Status::OK;
  }
  grpc::Status Pin(grpc::ServerContext*, const v1::PinChunksRequest* request,
                   v1::PinChunksResponse* response) override {
    response->set_changed(request->pinned() ? 1 : 0);
    response->add_missing_keys(request->keys(0));
    return grpc::Status::OK;
  }
  grpc::Status Prefetch(grpc::ServerContext* context, const v1::PrefetchChunksRequest* request,
                        v1::PrefetchChunksResponse* response) override {
    if (request->chunks(0) == "wait") {
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    }
    response->add_chunks()->set_key(request->chunks(0));
    return grpc::Status::OK;
  }
  v1::PutChunksRequest last_put;
  v1::SplitDocumentRequest last_split;
};

class FakeAdmin : public v1::Admin::Service {
 public:
  grpc::Status GetInfo(grpc::ServerContext*, const v1::GetInfoRequest*,
                       v1::GetInfoResponse* response) override {
    response->set_version("9.9");
    return grpc::Status::OK;
  }
  grpc::Status UpdateCorrection(grpc::ServerContext*, const v1::UpdateCorrectionRequest* request,
                                v1::CorrectionInfo* response) override {
    response->set_fits(request->action());
    return grpc::Status::OK;
  }
};

class GrpcCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&inference_);
    builder.RegisterService(&chunks_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
    client_.emplace(MakeGrpcCalls({.address = address_}).value(), cancellation_);
  }
  void TearDown() override { server_->Shutdown(); }

  absl::Status Ask(const std::string& question, absl::Time deadline) {
    v1::GenerateRequest request;
    request.mutable_prompt()->set_question(question);
    return client_->Generate(request, deadline, [](const v1::GenerateEvent&) {}).status();
  }

  FakeInference inference_;
  FakeChunks chunks_;
  FakeAdmin admin_;
  const absl::Time kNoDeadline = absl::InfiniteFuture();
  cli::Cancellation cancellation_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<cli::Client> client_;
};

TEST_F(GrpcCallsTest, GenerateCarriesEveryEvent) {
  v1::GenerateRequest request;
  request.set_namespace_("tenant");
  request.mutable_prompt()->set_question("Q");
  request.mutable_blend()->set_ratio(0);  // which is not the default
  std::vector<v1::GenerateEvent> events;
  const auto finished = client_->Generate(request, kNoDeadline, [&](const auto& e) { events.push_back(e); });
  ASSERT_TRUE(finished.ok()) << finished.status();
  EXPECT_EQ(inference_.last_generate.DebugString(), request.DebugString());
  EXPECT_TRUE(inference_.last_generate.blend().has_ratio());
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0].prompt().prompt_tokens(), 42);
  EXPECT_EQ(events[0].prompt().policy(), v1::POLICY_HKVD);
  EXPECT_EQ(events[0].prompt().chunks(0).source(), v1::CHUNK_SOURCE_OTHER_ANCHOR);
  EXPECT_EQ(events[1].text().text(), "Hi");
  EXPECT_EQ(events[1].text().logprobs(0).logprob(), -0.25);
  EXPECT_EQ(events[2].finished().DebugString(), finished->DebugString());
  EXPECT_EQ(finished->stop_string(), "!");
}

TEST_F(GrpcCallsTest, ErrorsKeepCodeAndMessage) {
  EXPECT_EQ(Ask("fail", kNoDeadline), absl::ResourceExhaustedError("queue full"));
}

TEST_F(GrpcCallsTest, CallsThatAreNoStreamsAreToldWhenToTryAgainToo) {
  v1::SplitDocumentRequest request;
  request.set_text("refuse");
  const absl::Status refused = client_->calls().Split(request, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelayOf(refused), absl::Milliseconds(250));
  request.set_text("wait");
  const absl::Status late =
      client_->calls()
          .Split(request, {.client = "", .deadline = absl::Now() + absl::Milliseconds(20)})
          .status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << "and the caller's deadline is kept";
}

TEST_F(GrpcCallsTest, CancellationEndsAStream) {
  std::thread interrupter([this] {
    inference_.streaming.WaitForNotification();
    cancellation_.Request();
  });
  EXPECT_EQ(Ask("wait", kNoDeadline).code(), absl::StatusCode::kCancelled);
  interrupter.join();
  // Looking things up still works: that is how the bench cleans up.
  EXPECT_TRUE(client_->calls().GetInfo({}).ok());
}

TEST_F(GrpcCallsTest, DeadlinesArePassedOn) {
  EXPECT_EQ(Ask("wait", absl::Now() + absl::Milliseconds(50)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GrpcCallsTest, ScoreTakesLargeDistributions) {
  v1::ScoreRequest request;
  request.set_continuation_text("text");
  request.set_return_distributions(true);
  const auto scores = client_->Score(request, kNoDeadline);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(inference_.last_score.DebugString(), request.DebugString());
  EXPECT_EQ(scores->prompt.prompt_tokens(), 7);
  ASSERT_THAT(scores->tokens, SizeIs(1));
  EXPECT_EQ(scores->tokens[0].logprob(), -1.5);
  ASSERT_EQ(scores->tokens[0].distribution_size(), (5 << 20) / 4);
  EXPECT_EQ(scores->tokens[0].distribution((5 << 20) / 4 - 1), 0.25f);
}

TEST_F(GrpcCallsTest, Chunks) {
  const auto put = FromText<v1::PutChunksRequest>(R"(namespace: "tenant"  chunks: [ "a", "b" ])");
  std::vector<bool> present;
  ASSERT_TRUE(
      client_->Put(put, kNoDeadline, [&](const auto& p) { present.push_back(p.already_present()); }).ok());
  EXPECT_THAT(present, ElementsAre(false, true));
  EXPECT_EQ(chunks_.last_put.DebugString(), put.DebugString());

  Calls& calls = client_->calls();
  const auto stat = calls.Stat(FromText<v1::StatChunksRequest>(R"(namespace: "t"  keys: "k1")"));
  EXPECT_EQ(stat->chunks(0).key(), "k1");
  EXPECT_EQ(stat->chunks(0).label(), "t");
  const auto list = calls.List(FromText<v1::ListChunksRequest>(R"(page_token: "p")"));
  EXPECT_EQ(list->next_page_token(), "p+");
  EXPECT_EQ(list->chunks(0).num_tokens(), -1);  // the server's default page size
  EXPECT_EQ(calls.Delete(FromText<v1::DeleteChunksRequest>("all: true"))->deleted(), 1000);
  const auto pin = calls.Pin(FromText<v1::PinChunksRequest>(R"(keys: "k1"  pinned: true)"));
  EXPECT_EQ(pin->changed(), 1);
  EXPECT_THAT(pin->missing_keys(), ElementsAre("k1"));
  const auto split = FromText<v1::SplitDocumentRequest>(R"(text: "text"  chunk_tokens: 20)");
  EXPECT_EQ(calls.Split(split, {})->next_byte(), 4);
  EXPECT_EQ(chunks_.last_split.DebugString(), split.DebugString());
  EXPECT_EQ(calls.Prefetch(FromText<v1::PrefetchChunksRequest>(R"(chunks: "a")"))->chunks(0).key(), "a");
}

TEST_F(GrpcCallsTest, InfoComesThrough) {
  const auto info = client_->calls().GetInfo({});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version(), "9.9");
}

TEST_F(GrpcCallsTest, CorrectionsAreSteered) {
  v1::UpdateCorrectionRequest request;
  request.set_action(v1::CORRECTION_ACTION_RESET);
  const auto correction = client_->calls().UpdateCorrection(request);
  ASSERT_TRUE(correction.ok()) << correction.status();
  EXPECT_EQ(correction->fits(), v1::CORRECTION_ACTION_RESET);
}

TEST_F(GrpcCallsTest, HealthFollowsTheHealthService) {
  EXPECT_TRUE(client_->calls().CheckHealth().ok()) << client_->calls().CheckHealth();
  server_->GetHealthCheckService()->SetServingStatus(false);
  const absl::Status health = client_->calls().CheckHealth();
  EXPECT_EQ(health.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(health.message()), HasSubstr(address_));
  server_->Shutdown();
  EXPECT_EQ(client_->calls().CheckHealth().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcCallsTest, AFileThatIsNoPemIsNamedAndNotTheServer) {
  const auto calls = MakeGrpcCalls({.address = address_, .tls_ca_path = "/proc/self/stat"});
  EXPECT_EQ(calls.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(calls.status().message()),
              HasSubstr("--tls-ca is '/proc/self/stat'; allowed: a file in PEM form"));
}

TEST_F(GrpcCallsTest, AKeyThatNoHeaderCanCarryIsRefusedWithoutBeingShown) {
  for (const std::string key : {"kvb-secret\n{\"tenant\":\"x\"}", "kvb-secret\r", "kvb-secret ",
                                "\tkvb-secret", "kvb-secret\x7f", "kvb-secr\xc3\xa9t"}) {
    const absl::Status status = MakeGrpcCalls({.address = address_, .api_key = key}).status();
    EXPECT_EQ(status, absl::InvalidArgumentError(
                          "KVBLEND_API_KEY has a blank, a line break or another character that no key has; "
                          "allowed: the first line that `kvblend key new` printed"));
  }
  const auto calls =
      MakeGrpcCalls({.address = address_, .api_key = "!kvb-~"});  // the ends of what is allowed
  ASSERT_TRUE(calls.ok()) << calls.status();
  EXPECT_TRUE((*calls)->GetInfo({}).ok());
}

TEST_F(GrpcCallsTest, ACallThatTakesTooLongIsNamedWithTheTimeThatItHad) {
  const auto calls = MakeGrpcCalls({.address = address_, .unary_timeout = absl::Milliseconds(20)}).value();
  v1::PrefetchChunksRequest request;
  request.add_chunks("wait");
  const absl::Status status = calls->Prefetch(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address_ + " has not answered Prefetch within 20ms"));
}

TEST_F(GrpcCallsTest, AServerThatIsNotThereIsUnavailableAndNamed) {
  server_->Shutdown();
  const auto info = MakeGrpcCalls({.address = address_}).value()->GetInfo({});
  EXPECT_EQ(info.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr(address_));
}

}  // namespace
}  // namespace kvblend::server
