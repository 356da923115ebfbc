// Bodies of POST /v1/chunks and the paths below it. Stateless, thread-safe, never throws.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "kvblend/v1/chunks.pb.h"

namespace kvblend::server::openai {

struct PutRequest {
  v1::PutChunksRequest request;
  bool stream = false;  // tell of each chunk when it is done
};

/// kvblend.v1.PutChunksRequest in protobuf's JSON, with two members more: "documents", which become chunks as
/// those of a chat request do, behind the ones of "chunks"; and "stream". kInvalidArgument naming what is
/// wrong.
absl::StatusOr<PutRequest> ParsePutRequest(std::string_view body);

/// Any message in protobuf's JSON.
absl::Status ParseMessageBody(std::string_view body, google::protobuf::Message* message);

}  // namespace kvblend::server::openai
