// The gRPC client against a server of its own that says what the test wants.
#include "server/cli/grpc_client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/convert/requests.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class FakeInference : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    last_generate = *request;
    v1::GenerateEvent event;
    event.mutable_prompt()->set_prompt_tokens(42);
    event.mutable_prompt()->set_policy(v1::POLICY_HKVD);
    v1::ChunkReport& chunk = *event.mutable_prompt()->add_chunks();
    chunk.set_source(v1::CHUNK_SOURCE_OTHER_ANCHOR);
    chunk.set_tier(v1::TIER_HOST_MEMORY);
    writer->Write(event);
    event.mutable_text()->set_text("Hi");
    event.mutable_text()->add_token_ids(3);
    v1::TokenLogprob& logprob = *event.mutable_text()->add_logprobs();
    logprob.set_token_id(3);
    logprob.set_logprob(-0.25);
    event.mutable_text()->add_top_logprobs()->add_tokens()->set_token_id(4);
    writer->Write(event);
    if (request->prompt().question() == "wait") {
      streaming.Notify();
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
      return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    }
    if (request->prompt().question() == "fail")
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue full");
    event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP_STRING);
    event.mutable_finished()->set_stop_string("!");
    event.mutable_finished()->set_seed(99);
    event.mutable_finished()->mutable_usage()->set_completion_tokens(1);
    event.mutable_finished()->mutable_timings()->set_time_to_first_token_seconds(0.5);
    writer->Write(event);
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
  grpc::Status Split(grpc::ServerContext*, const v1::SplitDocumentRequest* request,
                     v1::SplitDocumentResponse* response) override {
    last_split = *request;
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
  v1::PutChunksRequest last_put;
  v1::SplitDocumentRequest last_split;
};

class FakeAdmin : public v1::Admin::Service {
 public:
  grpc::Status GetInfo(grpc::ServerContext*, const v1::GetInfoRequest*,
                       v1::GetInfoResponse* response) override {
    response->set_version("9.9");
    response->mutable_model()->set_vocab_size(49152);
    response->mutable_store()->set_entries(12);
    v1::DeviceInfo* device = response->mutable_device();
    device->set_device("cuda:1");
    device->set_name("GPU");
    device->set_reason("asked for");
    device->set_memory_used_bytes(13);
    device->set_memory_total_bytes(14);
    response->mutable_load()->set_pages_used(15);
    response->mutable_load()->set_pages_total(16);
    return grpc::Status::OK;
  }
};

class GrpcClientTest : public testing::Test {
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
    client_ = CreateGrpcClient(address_, cancellation_);
  }
  void TearDown() override { server_->Shutdown(); }

  FakeInference inference_;
  FakeChunks chunks_;
  FakeAdmin admin_;
  Cancellation cancellation_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<EngineClient> client_;
};

TEST_F(GrpcClientTest, GenerateCarriesEveryFieldAndEvent) {
  GenerateRequest request;
  request.caller.tenant_namespace = "tenant";
  request.prompt = {.system_text = "S",
                    .lead_in = "L",
                    .chunks = {"a", "b"},
                    .question = "Q",
                    .history = {{Role::kUser, "u"}, {Role::kAssistant, "v"}}};
  request.blend = {.reuse = Reuse::kPrefix,
                   .anchoring = Anchoring::kIsolated,
                   .policy = Policy::kRandom,
                   .ratio = 0.0,
                   .query_layers = 3,
                   .hkvd_layer = 2,
                   .hkvd_source = DeviationSource::kKey,
                   .link_tokens = 0,
                   .random_seed = 8,
                   .store_misses = false};
  request.sampling.max_tokens = 5;
  request.sampling.temperature = 0.5;
  request.sampling.top_k = 6;
  request.sampling.top_p = 0.75;
  request.sampling.min_p = 0.125;
  request.sampling.repetition_penalty = 1.5;
  request.sampling.seed = 77;
  request.sampling.stop = {"!"};
  request.sampling.top_logprobs = 1;
  request.sampling.ignore_eos = true;

  std::vector<PromptReport> prompts;
  std::vector<TextDelta> deltas;
  const auto result = client_->Generate(request, {.on_prompt = [&](const auto& p) { prompts.push_back(p); },
                                                  .on_text = [&](const auto& d) { deltas.push_back(d); }});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(inference_.last_generate.DebugString(), ToProto(request).DebugString());
  const v1::GenerateRequest& sent = inference_.last_generate;
  EXPECT_EQ(sent.namespace_(), "tenant");
  EXPECT_EQ(sent.prompt().history(1).role(), v1::ROLE_ASSISTANT);
  EXPECT_EQ(sent.blend().reuse(), v1::REUSE_PREFIX);
  EXPECT_EQ(sent.blend().anchoring(), v1::ANCHORING_ISOLATED);
  EXPECT_EQ(sent.blend().policy(), v1::POLICY_RANDOM);
  EXPECT_TRUE(sent.blend().has_ratio());  // 0 is not the default
  EXPECT_EQ(sent.blend().ratio(), 0);
  EXPECT_EQ(sent.blend().hkvd_source(), v1::DEVIATION_SOURCE_KEY);
  EXPECT_TRUE(sent.blend().has_link_tokens());
  EXPECT_TRUE(sent.blend().has_store_misses());
  EXPECT_FALSE(sent.blend().store_misses());
  EXPECT_EQ(sent.sampling().top_p(), 0.75);
  EXPECT_EQ(sent.sampling().seed(), 77u);
  EXPECT_TRUE(sent.sampling().ignore_eos());

  ASSERT_THAT(prompts, SizeIs(1));
  EXPECT_EQ(prompts[0].prompt_tokens, 42);
  EXPECT_EQ(prompts[0].policy, Policy::kHkvd);
  EXPECT_EQ(prompts[0].chunks.at(0).source, ChunkSource::kOtherAnchor);
  ASSERT_THAT(deltas, SizeIs(1));
  EXPECT_EQ(deltas[0].text, "Hi");
  EXPECT_THAT(deltas[0].token_ids, ElementsAre(3));
  EXPECT_EQ(deltas[0].logprobs.at(0).logprob, -0.25);
  EXPECT_EQ(deltas[0].top_logprobs.at(0).at(0).token_id, 4);
  EXPECT_EQ(result->finish_reason, FinishReason::kStopString);
  EXPECT_EQ(result->stop_string, "!");
  EXPECT_EQ(result->seed, 99u);
  EXPECT_EQ(result->completion_tokens, 1);
  EXPECT_EQ(result->time_to_first_token_seconds, 0.5);
}

TEST_F(GrpcClientTest, ErrorsKeepCodeAndMessage) {
  GenerateRequest request;
  request.prompt.question = "fail";
  const auto result = client_->Generate(request, {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(result.status().message(), "queue full");
}

TEST_F(GrpcClientTest, CancellationEndsAStream) {
  GenerateRequest request;
  request.prompt.question = "wait";
  std::thread interrupter([this] {
    inference_.streaming.WaitForNotification();
    cancellation_.Request();
  });
  EXPECT_EQ(client_->Generate(request, {}).status().code(), absl::StatusCode::kCancelled);
  interrupter.join();
  // Looking things up still works: that is how the bench cleans up.
  EXPECT_TRUE(client_->GetInfo().ok());
}

TEST_F(GrpcClientTest, DeadlinesArePassedOn) {
  GenerateRequest request;
  request.prompt.question = "wait";
  request.caller.deadline = absl::Now() + absl::Milliseconds(50);
  EXPECT_EQ(client_->Generate(request, {}).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GrpcClientTest, ScoreTakesTextOrTokensAndLargeDistributions) {
  ScoreRequest request;
  request.continuation = "text";
  request.return_distributions = true;
  const auto scores = client_->Score(request);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(inference_.last_score.continuation_text(), "text");
  EXPECT_EQ(scores->prompt.prompt_tokens, 7);
  ASSERT_THAT(scores->tokens, SizeIs(1));
  EXPECT_EQ(scores->tokens[0].logprob, -1.5);
  EXPECT_THAT(scores->tokens[0].distribution, SizeIs((5 << 20) / 4));
  EXPECT_EQ(scores->tokens[0].distribution.back(), 0.25f);

  request.continuation = "";
  request.continuation_token_ids = {1, 2};
  ASSERT_TRUE(client_->Score(request).ok());
  EXPECT_THAT(inference_.last_score.continuation_token_ids().ids(), ElementsAre(1, 2));
}

TEST_F(GrpcClientTest, Chunks) {
  PutChunksRequest put{.caller = {},
                       .system_text = "S",
                       .lead_in = "L",
                       .anchoring = Anchoring::kIsolated,
                       .chunks = {"a", "b"},
                       .label = "x",
                       .chunk_labels = {"y", "z"},
                       .pin = true};
  put.caller.tenant_namespace = "tenant";
  std::vector<bool> present;
  ASSERT_TRUE(client_->PutChunks(put, [&](const auto& p) { present.push_back(p.already_present); }).ok());
  EXPECT_THAT(present, ElementsAre(false, true));
  EXPECT_EQ(chunks_.last_put.DebugString(), ToProto(put).DebugString());
  EXPECT_EQ(chunks_.last_put.namespace_(), "tenant");
  EXPECT_EQ(chunks_.last_put.label(), "x");
  EXPECT_EQ(chunks_.last_put.anchoring(), v1::ANCHORING_ISOLATED);
  EXPECT_TRUE(chunks_.last_put.pin());

  const std::vector<std::string> keys = {"k1", "k2"};
  const auto stat = client_->StatChunks("t", keys);
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->chunks.at(0).key, "k1");
  EXPECT_EQ(stat->chunks.at(0).label, "t");
  EXPECT_THAT(stat->missing_keys, ElementsAre("gone"));
  const auto page = client_->ListChunks("t", 0, "p");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->chunks.at(0).num_tokens, -1);  // the server's default page size
  EXPECT_EQ(page->next_page_token, "p+");
  EXPECT_EQ(client_->ListChunks("t", 5, "")->chunks.at(0).num_tokens, 5);
  EXPECT_EQ(client_->DeleteChunks("t", keys)->changed, 2);
  EXPECT_EQ(client_->DeleteAllChunks("t")->changed, 1000);
  EXPECT_EQ(client_->PinChunks("t", keys, false)->changed, 0);
  EXPECT_THAT(client_->PinChunks("t", keys, true)->missing_keys, ElementsAre("k1"));
}

TEST_F(GrpcClientTest, Split) {
  SplitDocumentRequest request;
  request.caller.tenant_namespace = "tenant";
  request.lead_in = "L";
  request.text = "text";
  request.chunk_tokens = 20;
  const auto split = client_->SplitDocument(request);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(chunks_.last_split.DebugString(), ToProto(request).DebugString());
  ASSERT_THAT(split->chunks, SizeIs(1));
  EXPECT_EQ(split->chunks[0].key, "k");
  EXPECT_EQ(split->chunks[0].end_byte, 4);
  EXPECT_EQ(split->next_byte, 4);
}

TEST_F(GrpcClientTest, InfoComesThrough) {
  const auto info = client_->GetInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->engine.version, "9.9");
  EXPECT_EQ(info->engine.vocab_size, 49152);
  EXPECT_EQ(info->store.entries, 12);
  EXPECT_EQ(info->engine.device, "cuda:1");
  EXPECT_EQ(info->engine.device_name, "GPU");
  EXPECT_EQ(info->engine.device_reason, "asked for");
  ASSERT_TRUE(info->device_memory.has_value());
  EXPECT_EQ(info->device_memory->used_bytes, 13);
  EXPECT_EQ(info->device_memory->total_bytes, 14);
  EXPECT_EQ(info->pages_used, 15);
  EXPECT_EQ(info->pages_total, 16);
}

TEST_F(GrpcClientTest, HealthFollowsTheHealthService) {
  EXPECT_TRUE(client_->CheckHealth().ok()) << client_->CheckHealth();
  server_->GetHealthCheckService()->SetServingStatus(false);
  const absl::Status health = client_->CheckHealth();
  EXPECT_EQ(health.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(health.message()), HasSubstr(address_));
  server_->Shutdown();
  EXPECT_EQ(client_->CheckHealth().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GrpcClientTest, AServerThatIsNotThereIsUnavailableAndNamed) {
  server_->Shutdown();
  Cancellation cancellation;
  const auto info = CreateGrpcClient(address_, cancellation)->GetInfo();
  EXPECT_EQ(info.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr(address_));
}

}  // namespace
}  // namespace kvblend::server::cli
