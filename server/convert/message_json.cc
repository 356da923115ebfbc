#include "server/convert/message_json.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/convert/enums.h"

namespace kvblend::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

/// Makes "query" to "POLICY_QUERY" wherever the message has an enumeration.
void SpellOutEnums(const Descriptor& descriptor, nlohmann::json& json) {
  if (!json.is_object()) return;
  for (auto& [name, value] : json.items()) {
    const FieldDescriptor* field = descriptor.FindFieldByName(name);
    if (field == nullptr) continue;
    if (field->enum_type() != nullptr && value.is_string()) {
      const auto* found = FindValue(*field->enum_type(), value.get<std::string>());
      if (found != nullptr) value = found->name();
    } else if (field->message_type() != nullptr && value.is_array()) {
      for (auto& element : value) SpellOutEnums(*field->message_type(), element);
    } else if (field->message_type() != nullptr) {
      SpellOutEnums(*field->message_type(), value);
    }
  }
}

}  // namespace

absl::Status ParseJson(std::string_view json, google::protobuf::Message& message) {
  auto document = nlohmann::json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("the request is not valid JSON");
  SpellOutEnums(*message.GetDescriptor(), document);
  const auto status = google::protobuf::util::JsonStringToMessage(document.dump(), &message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the request's JSON: ", std::string(status.message().data(), status.message().size())));
}

std::string MessageToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  static_cast<void>(google::protobuf::util::MessageToJsonString(message, &json, options));
  return json;
}

}  // namespace kvblend::server
