// The client's side of the wire: the engine's requests as messages, messages as the engine's reports. An
// enumeration value that this client does not know reads as the default.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

v1::GenerateRequest ToProto(const GenerateRequest& request);
v1::ScoreRequest ToProto(const ScoreRequest& request);
v1::PutChunksRequest ToProto(const PutChunksRequest& request);

PromptReport FromProto(const v1::PromptReport& report);
TextDelta FromProto(const v1::TextDelta& delta);
GenerateResult FromProto(const v1::GenerateFinished& finished);
ScoredToken FromProto(const v1::ScoredToken& token);
PutChunkProgress FromProto(const v1::PutChunkProgress& progress);
ChunkInfo FromProto(const v1::ChunkInfo& chunk);
Info FromProto(const v1::GetInfoResponse& response);

/// The codes are the same by design; the message is kept.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace kvblend::server::cli
