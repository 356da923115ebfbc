// The streaming calls, with an engine whose every event the test decides.
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/server_fixture.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A question on its way: what its client has of it, and what the engine has.
struct Asked {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> reader;
  std::shared_ptr<testing::FakeGenerate> call;  // null when it does not reach the engine
};

class ServerStreamingTest : public ServerFixture {
 protected:
  Asked Ask(const v1::GenerateRequest& request = Question()) {
    auto context = std::make_unique<grpc::ClientContext>();
    auto reader = inference_->Generate(context.get(), request);
    return {std::move(context), std::move(reader), engine_.NextGenerate()};
  }
};

TextDelta Delta(std::string text, int32_t token_id) {
  TextDelta delta;
  delta.text = std::move(text);
  delta.token_ids = {token_id};
  return delta;
}

TEST_F(ServerStreamingTest, GenerateSendsReportTextAndEnd) {
  v1::GenerateRequest request = Question();
  request.set_namespace_("tenant");
  request.mutable_prompt()->add_chunks("chunk");
  const auto [context, reader, call] = Ask(request);
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request.prompt.question, "why?");
  EXPECT_THAT(call->request.prompt.chunks, ElementsAre("chunk"));
  EXPECT_EQ(call->request.caller.tenant_namespace, "tenant");
  EXPECT_EQ(call->request.caller.fairness_key, "tenant\nipv4:127.0.0.1");
  EXPECT_EQ(call->request.caller.deadline, absl::InfiniteFuture());

  PromptReport report;
  report.prompt_tokens = 12;
  report.time_to_first_token_seconds = 0.5;
  call->observer->OnPrompt(report);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));  // the report comes before there is any text
  EXPECT_EQ(event.prompt().prompt_tokens(), 12);

  call->observer->OnText(Delta("be", 1));
  call->observer->OnText(Delta("cause", 2));
  GenerateResult result;
  result.finish_reason = FinishReason::kMaxTokens;
  result.completion_tokens = 2;
  result.seed = 7;
  call->Finish(absl::OkStatus(), result);
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.text().text(), "be");
  EXPECT_THAT(event.text().token_ids(), ElementsAre(1));
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.text().text(), "cause");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.finished().reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(event.finished().seed(), 7u);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_FALSE(call->cancelled());
  EXPECT_TRUE(Exposes("kvblend_grpc_calls_total{code=\"OK\",method=\"Generate\",service=\"Inference\"} 1"));
  EXPECT_TRUE(Exposes("kvblend_generation_tokens_total 2"));
  EXPECT_TRUE(Exposes("kvblend_time_to_first_token_seconds_sum 0.5"));
}

TEST_F(ServerStreamingTest, ScoreSendsReportAndTokens) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.mutable_prompt()->set_question("why?");
  request.mutable_continuation_token_ids()->add_ids(5);
  const auto reader = inference_->Score(&context, request);
  const auto call = engine_.NextScore();
  ASSERT_NE(call, nullptr);
  EXPECT_THAT(call->request.continuation_token_ids, ElementsAre(5));
  call->observer->OnPrompt({});
  call->observer->OnToken({5, "five", -1.5, 6, -0.5, {-1, -2}});
  call->Finish(absl::OkStatus());
  v1::ScoreEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_prompt());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.token().logprob(), -1.5);
  EXPECT_THAT(event.token().distribution(), ElementsAre(-1, -2));
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(Exposes("kvblend_scored_tokens_total 1"));
}

TEST_F(ServerStreamingTest, PutSendsProgress) {
  grpc::ClientContext context;
  v1::PutChunksRequest request;
  request.add_chunks("one");
  request.add_chunks("two");
  request.set_label("corpus");
  const auto reader = chunks_->Put(&context, request);
  const auto call = engine_.NextPutChunks();
  ASSERT_NE(call, nullptr);
  EXPECT_THAT(call->request.chunks, ElementsAre("one", "two"));
  EXPECT_EQ(call->request.label, "corpus");
  call->observer->OnProgress({0, 1, 2, "aa", 3, false, 0.25});
  v1::PutChunkProgress progress;
  ASSERT_TRUE(reader->Read(&progress));
  EXPECT_EQ(progress.key(), "aa");
  EXPECT_EQ(progress.done(), 1);
  call->Finish(absl::ResourceExhaustedError("no room"));
  EXPECT_FALSE(reader->Read(&progress));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "no room");
  EXPECT_EQ(context.GetServerTrailingMetadata().count("retry-after-ms"), 0u);  // waiting would not help
}

TEST_F(ServerStreamingTest, CancellingTheCallCancelsTheRequest) {
  const auto [context, reader, call] = Ask();
  ASSERT_NE(call, nullptr);
  call->observer->OnPrompt({});
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  context->TryCancel();
  EXPECT_TRUE(call->WaitUntilCancelled());
  call->observer->OnText(Delta("late", 1));  // the engine may be in the middle of a step
  call->Finish(absl::CancelledError("cancelled"), GenerateResult());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(
      Exposes("kvblend_grpc_calls_total{code=\"CANCELLED\",method=\"Generate\",service=\"Inference\"} 1"));
  EXPECT_TRUE(Exposes("kvblend_generation_tokens_total 1")) << "tokens of answers that were cancelled too";
}

TEST_F(ServerStreamingTest, TheDeadlineReachesTheEngineAndCancels) {
  grpc::ClientContext context;
  const absl::Time deadline = absl::Now() + absl::Seconds(2);
  context.set_deadline(absl::ToChronoTime(deadline));
  const auto reader = inference_->Generate(&context, Question());
  const auto call = engine_.NextGenerate();
  ASSERT_NE(call, nullptr);
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(call->request.caller.deadline, absl::Now() + absl::Seconds(3));
  EXPECT_GT(call->request.caller.deadline, deadline - absl::Minutes(1));
  EXPECT_TRUE(call->WaitUntilCancelled());
  call->Finish(absl::CancelledError("cancelled"), GenerateResult());
}

TEST_F(ServerStreamingTest, AFullQueueSaysWhenToComeBack) {
  engine_.RefuseWith(absl::ResourceExhaustedError("64 requests are waiting; allowed: 64"));
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, Question());
  v1::GenerateEvent event;
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("64 requests are waiting"));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto hint = trailers.find("retry-after-ms");
  ASSERT_NE(hint, trailers.end());
  EXPECT_GT(std::stoi(std::string(hint->second.data(), hint->second.size())), 0);
}

TEST_F(ServerStreamingTest, ADeadlineBeforeTheFirstTokenIsCounted) {
  const auto [context, reader, call] = Ask();
  ASSERT_NE(call, nullptr);
  call->request.caller.on_dequeued(5);
  call->Finish(absl::DeadlineExceededError("too late"), GenerateResult());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Exposes("kvblend_request_queue_time_seconds_sum 5"));
  EXPECT_TRUE(Exposes("kvblend_requests_without_first_token_total{code=\"DEADLINE_EXCEEDED\"} 1"));
}

TEST_F(ServerStreamingTest, AnErrorInTheMiddleComesAfterWhatWasSent) {
  const auto [context, reader, call] = Ask();
  ASSERT_NE(call, nullptr);
  call->observer->OnPrompt({});
  call->observer->OnText(Delta("par", 1));
  call->Finish(absl::InternalError("layer 3 went wrong"), GenerateResult());
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.text().text(), "par");
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "layer 3 went wrong");
}

TEST_F(ServerStreamingTest, BadRequestsNeverReachTheEngine) {
  v1::GenerateRequest request = Question();
  request.mutable_blend()->set_policy(static_cast<v1::Policy>(42));
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("blend.policy is 42; allowed: "));

  grpc::ClientContext large_context;
  const auto large = inference_->Generate(&large_context, Question(std::string(2 << 20, 'x')));
  EXPECT_EQ(large->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);

  const auto [good_context, good, call] = Ask(Question("next?"));
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request.prompt.question, "next?");
  call->Finish(absl::OkStatus(), GenerateResult());
  v1::GenerateEvent event;
  EXPECT_TRUE(good->Read(&event));
  EXPECT_TRUE(good->Finish().ok());
}

TEST_F(ServerStreamingTest, AClientThatDoesNotReadIsCutOff) {
  const auto [context, reader, call] = Ask();
  ASSERT_NE(call, nullptr);
  const std::string text(64 << 10, 'x');
  // The transport's own buffers take a few megabytes at most.
  for (int i = 0; i < 1000 && !call->cancelled(); ++i) call->observer->OnText(Delta(text, i));
  EXPECT_TRUE(call->cancelled());
  call->Finish(absl::CancelledError("cancelled"), GenerateResult());
  v1::GenerateEvent event;
  int next = 0;
  while (reader->Read(&event)) EXPECT_THAT(event.text().token_ids(), ElementsAre(next++));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the client reads too slowly"));
}

TEST_F(ServerStreamingTest, EventsKeepTheirOrder) {
  constexpr int kEvents = 3000;
  const Asked asked = Ask();
  ASSERT_NE(asked.call, nullptr);
  std::thread engine_thread([&] {
    for (int i = 0; i < kEvents; ++i) asked.call->observer->OnText(Delta("x", i));
    asked.call->Finish(absl::OkStatus(), GenerateResult());
  });
  v1::GenerateEvent event;
  for (int i = 0; i < kEvents; ++i) {
    EXPECT_TRUE(asked.reader->Read(&event));
    EXPECT_THAT(event.text().token_ids(), ElementsAre(i));
  }
  EXPECT_TRUE(asked.reader->Read(&event));
  EXPECT_TRUE(event.has_finished());
  engine_thread.join();
  EXPECT_TRUE(asked.reader->Finish().ok());
}

// Calls that end at any moment, in any way: whatever the interleaving, each ends exactly once and nothing is
// used after it is gone (which the sanitizers see).
TEST_F(ServerStreamingTest, CallsMayEndAtAnyMoment) {
  constexpr int kClients = 4, kCallsPerClient = 50;
  std::thread engine_thread([&] {
    for (int i = 0; i < kClients * kCallsPerClient; ++i) {
      const auto call = engine_.NextGenerate();
      ASSERT_NE(call, nullptr);
      call->observer->OnPrompt({});
      for (int k = 0; k < 20 && !call->cancelled(); ++k) call->observer->OnText(Delta("x", k));
      call->Finish(call->cancelled() ? absl::CancelledError("") : absl::OkStatus(), GenerateResult());
    }
  });
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([this, random = std::mt19937(seed + c)]() mutable {
      for (int i = 0; i < kCallsPerClient; ++i) {
        grpc::ClientContext context;
        context.set_wait_for_ready(true);
        const auto reader = inference_->Generate(&context, Question());
        v1::GenerateEvent event;
        // Cancelling before the request has reached the server would leave the engine short of a call.
        EXPECT_TRUE(reader->Read(&event));
        bool more = true;
        for (uint32_t reads = random() % 25; more && reads > 0; --reads) more = reader->Read(&event);
        if (more) context.TryCancel();
        const grpc::StatusCode code = reader->Finish().error_code();
        EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::CANCELLED) << code;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine_thread.join();
}

}  // namespace
}  // namespace kvblend::server
