#include "engine/api/names.h"

namespace kvblend {
namespace {

constexpr NamedValue<Policy> kPolicies[] = {{Policy::kQuery, "query"}, {Policy::kHkvd, "hkvd"},
                                            {Policy::kLink, "link"},   {Policy::kNone, "none"},
                                            {Policy::kAll, "all"},     {Policy::kRandom, "random"}};
constexpr NamedValue<Reuse> kReuses[] = {
    {Reuse::kChunks, "chunks"}, {Reuse::kPrefix, "prefix"}, {Reuse::kNothing, "nothing"}};
constexpr NamedValue<Anchoring> kAnchorings[] = {{Anchoring::kAnchored, "anchored"},
                                                 {Anchoring::kIsolated, "isolated"}};
constexpr NamedValue<DeviationSource> kDeviationSources[] = {{DeviationSource::kValue, "value"},
                                                             {DeviationSource::kKey, "key"}};
constexpr NamedValue<RatioMode> kRatioModes[] = {{RatioMode::kFixed, "fixed"}, {RatioMode::kAuto, "auto"}};
constexpr NamedValue<Priority> kPriorities[] = {
    {Priority::kNormal, "normal"}, {Priority::kHigh, "high"}, {Priority::kLow, "low"}};
constexpr NamedValue<PromptSplit> kPromptSplits[] = {
    {PromptSplit::kNone, "none"}, {PromptSplit::kStored, "stored"}, {PromptSplit::kPassages, "passages"}};
constexpr NamedValue<Role> kRoles[] = {{Role::kUser, "user"}, {Role::kAssistant, "assistant"}};
constexpr NamedValue<ChunkSource> kChunkSources[] = {{ChunkSource::kMiss, "miss"},
                                                     {ChunkSource::kExact, "exact"},
                                                     {ChunkSource::kBlended, "blended"},
                                                     {ChunkSource::kOtherAnchor, "other_anchor"},
                                                     {ChunkSource::kBypassed, "bypassed"}};
constexpr NamedValue<PromptPart> kPromptParts[] = {{PromptPart::kSystem, "system"},
                                                   {PromptPart::kHistory, "history"},
                                                   {PromptPart::kLeadIn, "lead_in"},
                                                   {PromptPart::kChunk, "chunk"},
                                                   {PromptPart::kQuestion, "question"}};
constexpr NamedValue<Tier> kTiers[] = {{Tier::kNone, "none"},
                                       {Tier::kHostMemory, "host_memory"},
                                       {Tier::kDisk, "disk"},
                                       {Tier::kRedis, "redis"},
                                       {Tier::kPages, "pages"}};
constexpr NamedValue<FinishReason> kFinishReasons[] = {{FinishReason::kEndOfText, "end_of_text"},
                                                       {FinishReason::kStopString, "stop_string"},
                                                       {FinishReason::kMaxTokens, "max_tokens"},
                                                       {FinishReason::kContextFull, "context_full"}};
constexpr NamedValue<LearningState> kLearningStates[] = {
    {LearningState::kOff, "off"}, {LearningState::kFrozen, "frozen"}, {LearningState::kOn, "on"}};
constexpr NamedValue<CorrectionAction> kCorrectionActions[] = {{CorrectionAction::kShow, "show"},
                                                               {CorrectionAction::kFreeze, "freeze"},
                                                               {CorrectionAction::kLearn, "learn"},
                                                               {CorrectionAction::kReset, "reset"}};

}  // namespace

NameTable<Policy> NamesOf(Policy) { return kPolicies; }
NameTable<Reuse> NamesOf(Reuse) { return kReuses; }
NameTable<Anchoring> NamesOf(Anchoring) { return kAnchorings; }
NameTable<DeviationSource> NamesOf(DeviationSource) { return kDeviationSources; }
NameTable<RatioMode> NamesOf(RatioMode) { return kRatioModes; }
NameTable<Priority> NamesOf(Priority) { return kPriorities; }
NameTable<PromptSplit> NamesOf(PromptSplit) { return kPromptSplits; }
NameTable<Role> NamesOf(Role) { return kRoles; }
NameTable<ChunkSource> NamesOf(ChunkSource) { return kChunkSources; }
NameTable<PromptPart> NamesOf(PromptPart) { return kPromptParts; }
NameTable<Tier> NamesOf(Tier) { return kTiers; }
NameTable<FinishReason> NamesOf(FinishReason) { return kFinishReasons; }
NameTable<LearningState> NamesOf(LearningState) { return kLearningStates; }
NameTable<CorrectionAction> NamesOf(CorrectionAction) { return kCorrectionActions; }

}  // namespace kvblend
