// The engine's enumerations and the wire's: one table per enumeration, read in both directions.
// Stateless, thread-safe.
#pragma once

#include <optional>

#include "engine/api/request.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {

v1::Policy ToProto(Policy policy);
v1::Reuse ToProto(Reuse reuse);
v1::Anchoring ToProto(Anchoring anchoring);
v1::DeviationSource ToProto(DeviationSource source);
v1::RatioMode ToProto(RatioMode mode);
v1::Role ToProto(Role role);
v1::ChunkSource ToProto(ChunkSource source);
v1::Tier ToProto(Tier tier);
v1::FinishReason ToProto(FinishReason reason);

/// Nothing for a number without a counterpart: ..._UNSPECIFIED, and values that came after this build.
std::optional<Policy> FromProto(v1::Policy policy);
std::optional<Reuse> FromProto(v1::Reuse reuse);
std::optional<Anchoring> FromProto(v1::Anchoring anchoring);
std::optional<DeviationSource> FromProto(v1::DeviationSource source);
std::optional<RatioMode> FromProto(v1::RatioMode mode);
std::optional<Role> FromProto(v1::Role role);
std::optional<ChunkSource> FromProto(v1::ChunkSource source);
std::optional<Tier> FromProto(v1::Tier tier);
std::optional<FinishReason> FromProto(v1::FinishReason reason);

}  // namespace kvblend::server
