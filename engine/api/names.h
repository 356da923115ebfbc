// The names of the engine's enumerators as clients write and read them: one table for each enumeration, used
// by flags, JSON, errors, metrics and the wire.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/correction.h"
#include "engine/api/request.h"
#include "engine/api/tier.h"

namespace kvblend {

template <typename Enum>
struct NamedValue {
  Enum value;
  std::string_view name;
};
template <typename Enum>
using NameTable = absl::Span<const NamedValue<Enum>>;

/// All values of the argument's type with their names, in the order of their numbers. The argument only
/// selects the type.
NameTable<Policy> NamesOf(Policy);
NameTable<Reuse> NamesOf(Reuse);
NameTable<Anchoring> NamesOf(Anchoring);
NameTable<DeviationSource> NamesOf(DeviationSource);
NameTable<RatioMode> NamesOf(RatioMode);
NameTable<Priority> NamesOf(Priority);
NameTable<PromptSplit> NamesOf(PromptSplit);
NameTable<Role> NamesOf(Role);
NameTable<ChunkSource> NamesOf(ChunkSource);
NameTable<PromptPart> NamesOf(PromptPart);
NameTable<Tier> NamesOf(Tier);
NameTable<FinishReason> NamesOf(FinishReason);
NameTable<LearningState> NamesOf(LearningState);
NameTable<CorrectionAction> NamesOf(CorrectionAction);

template <typename Enum>
concept HasNames = requires(Enum value) {
  NamesOf(value);
};

/// "query", "hkvd", ... ; "unknown" for a number that is not in the enumeration.
template <HasNames Enum>
std::string_view Name(Enum value) {
  for (const auto& [candidate, name] : NamesOf(value)) {
    if (candidate == value) return name;
  }
  return "unknown";
}

/// kInvalidArgument: "policy is 'best'; allowed: query, hkvd, ...", where `field` is "policy".
template <HasNames Enum>
absl::StatusOr<Enum> ParseName(std::string_view field, std::string_view text) {
  std::string message;
  message.append(field).append(" is '").append(text).append("'; allowed: ");
  const char* separator = "";
  for (const auto& [value, name] : NamesOf(Enum{})) {
    if (name == text) return value;
    message.append(std::exchange(separator, ", ")).append(name);
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace kvblend
