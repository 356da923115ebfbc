// A gRPC server over a fake engine, and a client of it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/grpc/grpc_server.h"
#include "server/metrics/metrics.h"
#include "tests/support/fake_engine.h"

namespace kvblend::server {

class ServerFixture : public ::testing::Test {
 protected:
  static constexpr size_t kMaxUnsentBytes = 1 << 20;
  static constexpr int64_t kMaxMessageBytes = 1 << 20;

  void SetUp() override {
    engine_slot_.Serve(&engine_);
    Start("127.0.0.1:0");
    server_->SetServing(true);
  }

  void Start(const std::string& address) {
    ServiceContext context;
    context.calls = &calls_;
    context.metrics = &metrics_;
    GrpcServerOptions options;
    options.address = address;
    options.max_message_bytes = kMaxMessageBytes;
    options.limits.max_unsent_bytes = 2 * kMaxUnsentBytes;
    auto server = GrpcServer::Start(options, context);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const std::string target = server_->port() == 0 ? address : absl::StrCat("127.0.0.1:", server_->port());
    channel_ = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
    inference_ = v1::Inference::NewStub(channel_);
    chunks_ = v1::Chunks::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }

  static v1::GenerateRequest Question(const std::string& question = "why?") {
    v1::GenerateRequest request;
    request.mutable_prompt()->set_question(question);
    return request;
  }

  /// Whether the exposition has this line.
  bool Exposes(const std::string& line) {
    return absl::StrCat("\n", metrics_.Expose()).find("\n" + line + "\n") != std::string::npos;
  }

  // Destroyed from the bottom up: the server before what it uses.
  Metrics metrics_;
  EngineSlot engine_slot_;
  EngineCalls calls_{&engine_slot_, {.engine_options = {}, .max_message_bytes = kMaxMessageBytes}};
  testing::FakeEngine engine_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Chunks::Stub> chunks_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

}  // namespace kvblend::server
