// Requests: from the wire's messages to the engine's structs.
//
// Only what the wire alone can get wrong is checked here: enumeration numbers this server does not know,
// absent messages, keys that are no keys. Ranges are the engine's business. All errors are kInvalidArgument
// and name field, value and what is allowed. Messages are taken by rvalue: their texts are moved, not copied.
// Stateless, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/chunk_key.h"
#include "engine/api/correction.h"
#include "engine/api/request.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {

/// No more of the caller is filled in than tenant_namespace: the rest is not in the message.
absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request);
absl::StatusOr<ScoreRequest> FromProto(v1::ScoreRequest&& request);
absl::StatusOr<PutChunksRequest> FromProto(v1::PutChunksRequest&& request);
absl::StatusOr<SplitDocumentRequest> FromProto(v1::SplitDocumentRequest&& request);
absl::StatusOr<PrefetchChunksRequest> FromProto(v1::PrefetchChunksRequest&& request);
absl::StatusOr<CorrectionAction> FromProto(const v1::UpdateCorrectionRequest& request);

inline constexpr int kMaxKeysPerRequest = 1000;

/// Whether `name`, which is in `field` of a request, is short enough for a namespace. For calls that do not
/// come to the engine as a request, which checks the rest of them itself.
absl::Status CheckNamespace(const std::string& field, const std::string& name);

/// 1 to kMaxKeysPerRequest keys.
absl::StatusOr<std::vector<ChunkKey>> ParseKeys(const google::protobuf::RepeatedPtrField<std::string>& keys);

}  // namespace kvblend::server
