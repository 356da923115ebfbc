#include "server/convert/enums.h"

#include "absl/strings/ascii.h"

namespace kvblend::server {
namespace {

// "POLICY_"
std::string Prefix(const google::protobuf::EnumDescriptor& enumeration) {
  const std::string& first = enumeration.value(0)->name();
  return first.substr(0, first.rfind("UNSPECIFIED"));
}

}  // namespace

std::string ShortName(const google::protobuf::EnumValueDescriptor& value) {
  return absl::AsciiStrToLower(value.name().substr(Prefix(*value.type()).size()));
}

const google::protobuf::EnumValueDescriptor* FindValue(const google::protobuf::EnumDescriptor& enumeration,
                                                       std::string_view name) {
  for (int i = 0; i < enumeration.value_count(); ++i) {
    const auto* value = enumeration.value(i);
    if (name == value->name() || name == ShortName(*value)) return value;
  }
  return nullptr;
}

std::string ListNames(const google::protobuf::EnumDescriptor& enumeration) {
  std::string names;
  for (int i = 1; i < enumeration.value_count(); ++i) {
    names.append(i == 1 ? "" : ", ").append(ShortName(*enumeration.value(i)));
  }
  return names;
}

}  // namespace kvblend::server
