// Names of the engine's enumerations as clients write and read them.

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/engine.h"

namespace kvblend {
namespace {

template <typename Enum, size_t kCount>
using NameTable = std::array<std::pair<Enum, std::string_view>, kCount>;

constexpr NameTable<Policy, 6> kPolicies{{{Policy::kQuery, "query"},
                                          {Policy::kHkvd, "hkvd"},
                                          {Policy::kLink, "link"},
                                          {Policy::kNone, "none"},
                                          {Policy::kAll, "all"},
                                          {Policy::kRandom, "random"}}};
constexpr NameTable<Reuse, 3> kReuses{
    {{Reuse::kChunks, "chunks"}, {Reuse::kPrefix, "prefix"}, {Reuse::kNothing, "nothing"}}};
constexpr NameTable<Anchoring, 2> kAnchorings{
    {{Anchoring::kAnchored, "anchored"}, {Anchoring::kIsolated, "isolated"}}};
constexpr NameTable<ChunkSource, 5> kChunkSources{{{ChunkSource::kMiss, "miss"},
                                                   {ChunkSource::kExact, "exact"},
                                                   {ChunkSource::kBlended, "blended"},
                                                   {ChunkSource::kOtherAnchor, "other_anchor"},
                                                   {ChunkSource::kBypassed, "bypassed"}}};
constexpr NameTable<Tier, 4> kTiers{{{Tier::kNone, "none"},
                                     {Tier::kHostMemory, "host_memory"},
                                     {Tier::kDisk, "disk"},
                                     {Tier::kRedis, "redis"}}};
constexpr NameTable<FinishReason, 4> kFinishReasons{{{FinishReason::kEndOfText, "end_of_text"},
                                                     {FinishReason::kStopString, "stop_string"},
                                                     {FinishReason::kMaxTokens, "max_tokens"},
                                                     {FinishReason::kContextFull, "context_full"}}};
constexpr NameTable<RatioMode, 2> kRatioModes{{{RatioMode::kFixed, "fixed"}, {RatioMode::kAuto, "auto"}}};
constexpr NameTable<DeviationSource, 2> kDeviationSources{
    {{DeviationSource::kValue, "value"}, {DeviationSource::kKey, "key"}}};

template <typename Enum, size_t kCount>
std::string_view NameIn(const NameTable<Enum, kCount>& table, Enum value) {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

template <typename Enum, size_t kCount>
absl::StatusOr<Enum> ParseIn(const NameTable<Enum, kCount>& table, std::string_view field,
                             std::string_view text) {
  for (const auto& [value, name] : table) {
    if (name == text) return value;
  }
  std::string message;
  message.append(field).append(" is '").append(text).append("'; allowed: ");
  for (size_t i = 0; i < kCount; ++i) message.append(i == 0 ? "" : ", ").append(table[i].second);
  return absl::InvalidArgumentError(message);
}

}  // namespace

std::string_view Name(Policy policy) { return NameIn(kPolicies, policy); }
std::string_view Name(Reuse reuse) { return NameIn(kReuses, reuse); }
std::string_view Name(Anchoring anchoring) { return NameIn(kAnchorings, anchoring); }
std::string_view Name(ChunkSource source) { return NameIn(kChunkSources, source); }
std::string_view Name(Tier tier) { return NameIn(kTiers, tier); }
std::string_view Name(FinishReason reason) { return NameIn(kFinishReasons, reason); }
std::string_view Name(RatioMode mode) { return NameIn(kRatioModes, mode); }
std::string_view Name(DeviationSource source) { return NameIn(kDeviationSources, source); }

absl::StatusOr<Policy> ParsePolicy(std::string_view name) { return ParseIn(kPolicies, "policy", name); }
absl::StatusOr<Reuse> ParseReuse(std::string_view name) { return ParseIn(kReuses, "reuse", name); }
absl::StatusOr<Anchoring> ParseAnchoring(std::string_view name) {
  return ParseIn(kAnchorings, "anchoring", name);
}
absl::StatusOr<RatioMode> ParseRatioMode(std::string_view name) {
  return ParseIn(kRatioModes, "ratio_mode", name);
}
absl::StatusOr<DeviationSource> ParseDeviationSource(std::string_view name) {
  return ParseIn(kDeviationSources, "hkvd_source", name);
}

}  // namespace kvblend
