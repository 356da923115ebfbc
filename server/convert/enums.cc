#include "server/convert/enums.h"

#include <array>
#include <utility>

namespace kvblend::server {
namespace {

// Index 0 of every wire enumeration is ..._UNSPECIFIED.
template <typename Ours, typename Wire, size_t kCount>
using EnumTable = std::array<std::pair<Ours, Wire>, kCount>;

constexpr EnumTable<Policy, v1::Policy, 6> kPolicies{{{Policy::kQuery, v1::POLICY_QUERY},
                                                      {Policy::kHkvd, v1::POLICY_HKVD},
                                                      {Policy::kLink, v1::POLICY_LINK},
                                                      {Policy::kNone, v1::POLICY_NONE},
                                                      {Policy::kAll, v1::POLICY_ALL},
                                                      {Policy::kRandom, v1::POLICY_RANDOM}}};
constexpr EnumTable<Reuse, v1::Reuse, 3> kReuses{{{Reuse::kChunks, v1::REUSE_CHUNKS},
                                                  {Reuse::kPrefix, v1::REUSE_PREFIX},
                                                  {Reuse::kNothing, v1::REUSE_NOTHING}}};
constexpr EnumTable<Anchoring, v1::Anchoring, 2> kAnchorings{
    {{Anchoring::kAnchored, v1::ANCHORING_ANCHORED}, {Anchoring::kIsolated, v1::ANCHORING_ISOLATED}}};
constexpr EnumTable<DeviationSource, v1::DeviationSource, 2> kDeviationSources{
    {{DeviationSource::kValue, v1::DEVIATION_SOURCE_VALUE},
     {DeviationSource::kKey, v1::DEVIATION_SOURCE_KEY}}};
constexpr EnumTable<RatioMode, v1::RatioMode, 2> kRatioModes{
    {{RatioMode::kFixed, v1::RATIO_MODE_FIXED}, {RatioMode::kAuto, v1::RATIO_MODE_AUTO}}};
constexpr EnumTable<Role, v1::Role, 2> kRoles{
    {{Role::kUser, v1::ROLE_USER}, {Role::kAssistant, v1::ROLE_ASSISTANT}}};
constexpr EnumTable<ChunkSource, v1::ChunkSource, 5> kChunkSources{
    {{ChunkSource::kMiss, v1::CHUNK_SOURCE_MISS},
     {ChunkSource::kExact, v1::CHUNK_SOURCE_EXACT},
     {ChunkSource::kBlended, v1::CHUNK_SOURCE_BLENDED},
     {ChunkSource::kOtherAnchor, v1::CHUNK_SOURCE_OTHER_ANCHOR},
     {ChunkSource::kBypassed, v1::CHUNK_SOURCE_BYPASSED}}};
constexpr EnumTable<Tier, v1::Tier, 4> kTiers{{{Tier::kNone, v1::TIER_UNSPECIFIED},
                                               {Tier::kHostMemory, v1::TIER_HOST_MEMORY},
                                               {Tier::kDisk, v1::TIER_DISK},
                                               {Tier::kRedis, v1::TIER_REDIS}}};
constexpr EnumTable<FinishReason, v1::FinishReason, 4> kFinishReasons{
    {{FinishReason::kEndOfText, v1::FINISH_REASON_END_OF_TEXT},
     {FinishReason::kStopString, v1::FINISH_REASON_STOP_STRING},
     {FinishReason::kMaxTokens, v1::FINISH_REASON_MAX_TOKENS},
     {FinishReason::kContextFull, v1::FINISH_REASON_CONTEXT_FULL}}};

template <typename Ours, typename Wire, size_t kCount>
Wire WireValue(const EnumTable<Ours, Wire, kCount>& table, Ours value) {
  for (const auto& [ours, wire] : table) {
    if (ours == value) return wire;
  }
  return Wire{};
}

template <typename Ours, typename Wire, size_t kCount>
std::optional<Ours> OurValue(const EnumTable<Ours, Wire, kCount>& table, Wire value) {
  for (const auto& [ours, wire] : table) {
    if (wire == value) return ours;
  }
  return std::nullopt;
}

}  // namespace

v1::Policy ToProto(Policy policy) { return WireValue(kPolicies, policy); }
v1::Reuse ToProto(Reuse reuse) { return WireValue(kReuses, reuse); }
v1::Anchoring ToProto(Anchoring anchoring) { return WireValue(kAnchorings, anchoring); }
v1::DeviationSource ToProto(DeviationSource source) { return WireValue(kDeviationSources, source); }
v1::RatioMode ToProto(RatioMode mode) { return WireValue(kRatioModes, mode); }
v1::Role ToProto(Role role) { return WireValue(kRoles, role); }
v1::ChunkSource ToProto(ChunkSource source) { return WireValue(kChunkSources, source); }
v1::Tier ToProto(Tier tier) { return WireValue(kTiers, tier); }
v1::FinishReason ToProto(FinishReason reason) { return WireValue(kFinishReasons, reason); }

std::optional<Policy> FromProto(v1::Policy policy) { return OurValue(kPolicies, policy); }
std::optional<Reuse> FromProto(v1::Reuse reuse) { return OurValue(kReuses, reuse); }
std::optional<Anchoring> FromProto(v1::Anchoring anchoring) { return OurValue(kAnchorings, anchoring); }
std::optional<DeviationSource> FromProto(v1::DeviationSource source) {
  return OurValue(kDeviationSources, source);
}
std::optional<RatioMode> FromProto(v1::RatioMode mode) { return OurValue(kRatioModes, mode); }
std::optional<Role> FromProto(v1::Role role) { return OurValue(kRoles, role); }
std::optional<ChunkSource> FromProto(v1::ChunkSource source) { return OurValue(kChunkSources, source); }
std::optional<Tier> FromProto(v1::Tier tier) { return OurValue(kTiers, tier); }
std::optional<FinishReason> FromProto(v1::FinishReason reason) { return OurValue(kFinishReasons, reason); }

}  // namespace kvblend::server
