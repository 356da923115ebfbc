// The wire's enumerations: their values are found by the engine's names (engine/api/names.h), so that no
// value is written down twice. POLICY_QUERY is "query"; the value 0, ..._UNSPECIFIED, is "unspecified".
// Stateless, thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "engine/api/names.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"

namespace kvblend::server {

/// "query" of POLICY_QUERY.
std::string ShortName(const google::protobuf::EnumValueDescriptor& value);
/// The value called "query" or "POLICY_QUERY"; null when there is none.
const google::protobuf::EnumValueDescriptor* FindValue(const google::protobuf::EnumDescriptor& enumeration,
                                                       std::string_view name);
/// "query, hkvd, link": all short names but that of the value 0.
std::string ListNames(const google::protobuf::EnumDescriptor& enumeration);

/// "query" for v1::POLICY_QUERY; "unknown" for a number that came after this build.
template <typename Wire>
std::string Name(Wire value) requires google::protobuf::is_proto_enum<Wire>::value {
  const auto* found = google::protobuf::GetEnumDescriptor<Wire>()->FindValueByNumber(value);
  return found == nullptr ? "unknown" : ShortName(*found);
}

/// ..._UNSPECIFIED where the wire has no value of that name, as for Tier::kNone.
template <typename Wire, HasNames Ours>
Wire ToWire(Ours value) {
  static const std::map<Ours, Wire> values = [] {
    std::map<Ours, Wire> found;
    for (const auto& [ours, name] : NamesOf(Ours{})) {
      const auto* wire = FindValue(*google::protobuf::GetEnumDescriptor<Wire>(), name);
      found[ours] = wire == nullptr ? Wire{} : static_cast<Wire>(wire->number());
    }
    return found;
  }();
  const auto found = values.find(value);
  return found == values.end() ? Wire{} : found->second;
}

/// Nothing for ..._UNSPECIFIED and for numbers that came after this build.
template <HasNames Ours, typename Wire>
std::optional<Ours> FromWire(Wire value) {
  if (value == Wire{}) return std::nullopt;
  for (const auto& [ours, name] : NamesOf(Ours{})) {
    if (ToWire<Wire>(ours) == value) return ours;
  }
  return std::nullopt;
}

}  // namespace kvblend::server
