// A unary call whose message the test writes byte by byte.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"

namespace kvblend::server {

/// Sends bytes as they are, and returns the status of the answer.
inline grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                                  const std::string& bytes, grpc::ByteBuffer* response) {
  const grpc::Slice slice(bytes);
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  call->Finish(response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

inline grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                                  const std::string& bytes) {
  grpc::ByteBuffer response;
  return CallWithBytes(channel, method, bytes, &response);
}

}  // namespace kvblend::server
