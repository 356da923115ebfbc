// Names of the engine's enumerations as clients write and read them.

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/api/engine.h"
#include "engine/api/name_table.h"

namespace kvblend {
namespace {

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
