// Requests: from the wire's messages to the engine's structs, as the server reads them, and back, as a client
// writes them. What one direction writes the other reads as it was.
//
// Only what the wire alone can get wrong is checked here: enumeration numbers this server does not know,
// absent messages, lists with limits of their own, keys that are no keys. Ranges are the engine's business.
// All errors are kInvalidArgument and name field, value and what is allowed. Messages are taken by rvalue:
// their texts are moved, not copied. Stateless, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {

/// Of the caller only tenant_namespace is filled in: the rest is not in the message.
absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request);
absl::StatusOr<ScoreRequest> FromProto(v1::ScoreRequest&& request);
absl::StatusOr<PutChunksRequest> FromProto(v1::PutChunksRequest&& request);
absl::StatusOr<SplitDocumentRequest> FromProto(v1::SplitDocumentRequest&& request);
absl::StatusOr<PrefetchChunksRequest> FromProto(v1::PrefetchChunksRequest&& request);

/// Every field is written, defaults too, but for those of the ratio that are not set: there the server's
/// settings hold. Of the caller only tenant_namespace travels in the message.
v1::GenerateRequest ToProto(const GenerateRequest& request);
v1::ScoreRequest ToProto(const ScoreRequest& request);
v1::PutChunksRequest ToProto(const PutChunksRequest& request);
v1::SplitDocumentRequest ToProto(const SplitDocumentRequest& request);
v1::PrefetchChunksRequest ToProto(const PrefetchChunksRequest& request);

inline constexpr int kMaxKeysPerRequest = 1000;
inline constexpr int kMaxPageSize = 1000;
inline constexpr int kDefaultPageSize = 100;

/// `page_size`, or its default.
absl::StatusOr<int> PageSize(const v1::ListChunksRequest& request);

/// Checks the number of keys: 1 to kMaxKeysPerRequest, with `all` exactly 0.
absl::Status CheckKeyCount(int count, bool all);

}  // namespace kvblend::server
