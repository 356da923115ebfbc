// What only a client of the wire needs: messages as the structs that commands print. Requests and reports
// have their conversions, in both directions, in server/convert.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

/// An enumeration value that this client does not know reads as the default.
ChunkInfo ToChunkInfo(const v1::ChunkInfo& message);
PrefetchedChunk ToPrefetchedChunk(const v1::PrefetchedChunk& message);
Info ToInfo(const v1::GetInfoResponse& message);

/// The codes are the same by design; the message is kept.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace kvblend::server::cli
