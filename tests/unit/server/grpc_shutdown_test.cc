// How the gRPC server ends. None of these tests would end if it waited for its clients.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "server/grpc/grpc_server.h"

namespace kvblend::server {
namespace {

/// A call of a service of the library's, with messages as bytes.
class OpenCall {
 public:
  OpenCall(int port, const std::string& method)
      : stub_(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials())),
        call_(stub_.PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(nullptr);
    EXPECT_TRUE(Wait());
  }
  ~OpenCall() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
  }

  void Write(const std::string& bytes) {
    call_->Write(ToByteBuffer(bytes), nullptr);
    EXPECT_TRUE(Wait());
  }
  /// The bytes of the next message, or "the end".
  std::string Read() {
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    return Wait() ? FromByteBuffer(message) : "the end";
  }

 private:
  static grpc::ByteBuffer ToByteBuffer(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    return grpc::ByteBuffer(&slice, 1);
  }
  static std::string FromByteBuffer(const grpc::ByteBuffer& buffer) {
    grpc::Slice slice;
    EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
    return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

std::unique_ptr<GrpcServer> Start() {
  GrpcServerOptions options;
  options.address = "127.0.0.1:0";
  auto server = GrpcServer::Start(options, {});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Messages of grpc.health.v1: the status, which is field 1.
constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

TEST(GrpcShutdownTest, WatchesOfHealthAreToldAndEnd) {
  const std::unique_ptr<GrpcServer> server = Start();
  server->SetServing(true);
  OpenCall watch(server->port(), "/grpc.health.v1.Health/Watch");
  watch.Write("");
  EXPECT_EQ(watch.Read(), kServing);
  server->SetServing(false);
  server->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(watch.Read(), kNotServing);
  EXPECT_EQ(watch.Read(), "the end");
}

TEST(GrpcShutdownTest, ReflectionEnds) {
  const std::unique_ptr<GrpcServer> server = Start();
  OpenCall reflection(server->port(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  const char list_services[] = {0x3A, 0};
  reflection.Write(std::string(list_services, sizeof list_services));
  EXPECT_NE(reflection.Read().find("kvblend.v1.Inference"), std::string::npos);
  server->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(reflection.Read(), "the end");
}

}  // namespace
}  // namespace kvblend::server
