// Starting, serving, draining: the whole server around a fake engine.
#include <httplib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/main/run_server.h"
#include "tests/integration/call_with_bytes.h"
#include "tests/support/fake_engine.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

class ServerLifecycleTest : public ::testing::Test {
 protected:
  ServerLifecycleTest() : port_file_(absl::StrCat(::testing::TempDir(), "/kvblend_ports_", getpid())) {
    config_.grpc_address = "127.0.0.1:0";
    config_.http_address = "127.0.0.1:0";
    config_.api.address = "127.0.0.1:0";
    config_.port_file = port_file_;
    config_.engine.model_path = "model.gguf";
  }
  ~ServerLifecycleTest() override {
    if (thread_.joinable()) {
      if (!stop_.HasBeenNotified()) stop_.Notify();
      thread_.join();
    }
    unlink(port_file_.c_str());
  }

  // Returns when the server listens and is about to load the model, which it then does when load_ is
  // notified.
  void Start() {
    thread_ = std::thread([this] {
      exit_code_ = RunServer(
          config_,
          [this](const EngineOptions& options) -> absl::StatusOr<std::unique_ptr<Engine>> {
            EXPECT_EQ(options.model_path, "model.gguf");
            loading_.Notify();
            load_.WaitForNotification();
            auto engine = std::make_unique<testing::FakeEngine>();
            engine_ = engine.get();
            return engine;
          },
          stop_);
    });
    loading_.WaitForNotification();
    int grpc_port = 0, http_port = 0;
    std::ifstream file(port_file_);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("grpc=", 0) == 0) grpc_port = std::stoi(line.substr(5));
      if (line.rfind("http=", 0) == 0) http_port = std::stoi(line.substr(5));
    }
    ASSERT_GT(grpc_port, 0);
    ASSERT_GT(http_port, 0);
    http_ = std::make_unique<httplib::Client>("127.0.0.1", http_port);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", grpc_port), grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel_);
  }

  void Load() {
    load_.Notify();
    while (http_->Get("/readyz")->status != 200) std::this_thread::yield();
    // Health is the last thing to turn.
    while (Health("") != kServing) std::this_thread::yield();
  }

  static constexpr int kServing = 1, kNotServing = 2;  // grpc.health.v1.HealthCheckResponse.ServingStatus

  // grpc.health.v1.Health/Check by hand: its protos are not among the packages that the project needs.
  int Health(const std::string& service) {
    const std::string bytes =
        absl::StrCat("\x0A", std::string(1, static_cast<char>(service.size())), service);
    grpc::ByteBuffer response;
    const grpc::Status status = CallWithBytes(channel_, "/grpc.health.v1.Health/Check", bytes, &response);
    grpc::Slice answer;
    if (!status.ok() || !response.DumpToSingleSlice(&answer).ok() || answer.size() != 2) return -1;
    return answer.begin()[1];
  }

  std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>> Generate(grpc::ClientContext& context) {
    v1::GenerateRequest request;
    request.mutable_prompt()->set_question("why?");
    return inference_->Generate(&context, request);
  }
  grpc::StatusCode TryGenerate() {
    grpc::ClientContext context;
    return Generate(context)->Finish().error_code();
  }

  ServerConfig config_;
  const std::string port_file_;
  absl::Notification loading_, load_, stop_;
  testing::FakeEngine* engine_ = nullptr;
  int exit_code_ = -1;
  std::thread thread_;
  std::unique_ptr<httplib::Client> http_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
};

TEST_F(ServerLifecycleTest, LoadsServesDrainsAndStops) {
  config_.api.model_id = "served";
  Start();
  EXPECT_EQ(http_->Get("/healthz")->status, 200);
  EXPECT_EQ(http_->Get("/readyz")->status, 503);
  EXPECT_THAT(http_->Get("/readyz")->body, HasSubstr("loaded"));
  EXPECT_THAT(http_->Get("/metrics")->body, HasSubstr("kvblend_ready 0"));
  EXPECT_EQ(Health(""), kNotServing);
  EXPECT_EQ(Health("kvblend.v1.Inference"), kNotServing);
  EXPECT_EQ(TryGenerate(), grpc::StatusCode::UNAVAILABLE);

  Load();
  for (const char* service : {"", "kvblend.v1.Inference", "kvblend.v1.Chunks", "kvblend.v1.Admin"}) {
    EXPECT_EQ(Health(service), kServing) << service;
  }
  EXPECT_THAT(http_->Get("/metrics")->body, HasSubstr("kvblend_ready 1"));
  EXPECT_THAT(http_->Get("/metrics")->body, HasSubstr("kvblend_num_requests_waiting 3"));
  EXPECT_THAT(http_->Get("/metrics/vllm")->body,
              HasSubstr("vllm:num_requests_waiting{model_name=\"served\"} 3"));
  grpc::ClientContext context;
  const auto reader = Generate(context);
  const auto call = engine_->NextGenerate();
  ASSERT_NE(call, nullptr);
  call->observer->OnPrompt({});

  stop_.Notify();
  engine_->draining().WaitForNotification();
  EXPECT_EQ(http_->Get("/healthz")->status, 200);
  EXPECT_EQ(http_->Get("/readyz")->status, 503);
  EXPECT_THAT(http_->Get("/readyz")->body, HasSubstr("shutting down"));
  EXPECT_EQ(Health(""), kNotServing);
  EXPECT_EQ(Health("kvblend.v1.Inference"), kNotServing);
  EXPECT_EQ(TryGenerate(), grpc::StatusCode::UNAVAILABLE);

  TextDelta delta;
  delta.text = "finished";
  call->observer->OnText(delta);
  call->Finish(absl::OkStatus(), GenerateResult());
  v1::GenerateEvent event;
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.text().text(), "finished");
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(ServerLifecycleTest, CancelsWhatDoesNotFinishInTime) {
  config_.drain_timeout = absl::ZeroDuration();
  Start();
  Load();
  grpc::ClientContext context;
  const auto reader = Generate(context);
  const auto call = engine_->NextGenerate();
  ASSERT_NE(call, nullptr);
  stop_.Notify();
  EXPECT_TRUE(call->WaitUntilCancelled());
  call->Finish(absl::CancelledError("the server is shutting down"), GenerateResult());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(ServerLifecycleTest, CanBeStoppedBeforeItServes) {
  Start();
  stop_.Notify();
  load_.Notify();
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(ServerLifecycleTest, SaysInOneLineWhyItDoesNotStart) {
  const auto run = [this](const ServerConfig& config) {
    ::testing::internal::CaptureStderr();
    const int exit_code = RunServer(
        config,
        [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          return absl::FailedPreconditionError("the self-check failed");
        },
        stop_);
    return std::make_pair(exit_code, ::testing::internal::GetCapturedStderr());
  };
  const auto engine = run(config_);
  EXPECT_EQ(engine.first, 1);
  EXPECT_THAT(engine.second, HasSubstr("kvblend-server: the self-check failed\n"));
  config_.http_address = "nowhere";
  const auto http = run(config_);
  EXPECT_EQ(http.first, 2);
  EXPECT_THAT(http.second, HasSubstr("--http-address is 'nowhere'; allowed: "));
  config_.http_address = "127.0.0.1:0";
  config_.port_file = "/nonexistent/folder/ports";
  const auto port_file = run(config_);
  EXPECT_EQ(port_file.first, 1);
  EXPECT_THAT(port_file.second, HasSubstr("/nonexistent/folder/ports: No such file or directory"));
  config_.port_file.clear();
  config_.grpc_address = "nowhere";
  const auto grpc = run(config_);
  EXPECT_EQ(grpc.first, 2);
  EXPECT_THAT(grpc.second, HasSubstr("--grpc-address is 'nowhere'; allowed: HOST:PORT"));
  config_.grpc_address = "127.0.0.1:99999";
  EXPECT_EQ(run(config_).first, 2);
}

TEST_F(ServerLifecycleTest, ASettingThatOnlyTheModelShowsToBeWrongIsABadSettingToo) {
  const auto refuse = [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    return absl::InvalidArgumentError("max-context-tokens is 100000; allowed: 0 to 8192");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(RunServer(config_, refuse, stop_), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("kvblend-server: max-context-tokens is 100000; allowed: 0 to 8192\n"));
}

}  // namespace
}  // namespace kvblend::server
