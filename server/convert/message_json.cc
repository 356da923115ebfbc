#include "server/convert/message_json.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/convert/enums.h"

namespace kvblend::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

/// Turns "query" into "POLICY_QUERY" wherever the message has an enumeration. Refuses what protobuf's parser
/// takes although its JSON does not have it: "yes" for a boolean; one value for a list; a null or a list
/// within a list, which the parser leaves out or flattens, so that answers would count values by other
/// places; a field under both of its names.
absl::Status PrepareJson(const Descriptor& descriptor, const std::string& prefix, nlohmann::json& json) {
  if (!json.is_object()) return absl::OkStatus();
  std::set<const FieldDescriptor*> seen;
  for (auto& [name, value] : json.items()) {
    const FieldDescriptor* field = descriptor.FindFieldByName(name);
    if (field == nullptr) field = descriptor.FindFieldByCamelcaseName(name);
    if (field == nullptr || value.is_null()) continue;
    const std::string path = absl::StrCat(prefix, name);
    if (!seen.insert(field).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is set under another name, too; allowed: ", field->name(), " alone"));
    }
    if (field->is_repeated() && !field->is_map() && !value.is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no array; allowed: an array"));
    }
    for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
      if (!value[i].is_null() && !value[i].is_array()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          path, "[", i, "] is ", value[i].is_null() ? "null" : "an array", "; allowed: a value of the list"));
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !field->is_repeated() && !value.is_boolean()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no boolean; allowed: true or false"));
    }
    if (field->enum_type() != nullptr && value.is_string()) {
      const auto* found = FindValue(*field->enum_type(), value.get<std::string>());
      if (found != nullptr) value = found->name();
    } else if (field->message_type() != nullptr && value.is_array()) {
      int index = 0;
      for (auto& element : value) {
        KVBLEND_RETURN_IF_ERROR(
            PrepareJson(*field->message_type(), absl::StrCat(path, "[", index++, "]."), element));
      }
    } else if (field->message_type() != nullptr && !field->is_map()) {
      KVBLEND_RETURN_IF_ERROR(PrepareJson(*field->message_type(), absl::StrCat(path, "."), value));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseJson(std::string_view json, google::protobuf::Message& message) {
  auto document = nlohmann::json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("the request is not valid JSON");
  if (!document.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request's JSON is of type ", document.type_name(), "; allowed: an object"));
  }
  KVBLEND_RETURN_IF_ERROR(PrepareJson(*message.GetDescriptor(), "", document));
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

std::string SplitToJson(const v1::SplitDocumentResponse& response) {
  constexpr int kPieceChunks = 256;
  constexpr absl::string_view kBegin = "{\"chunks\":[";
  constexpr size_t kHeadRoom = 4096;  // for the end of the JSON, and what a transport puts in front
  const size_t end_size = MessageToJson(v1::SplitDocumentResponse()).size() - kBegin.size();
  std::string json(kBegin);
  v1::SplitDocumentResponse
      longest;  // as chunks come in the order of the text, the last one has the most digits
  if (response.chunks_size() > 0) *longest.add_chunks() = response.chunks(response.chunks_size() - 1);
  json.reserve(MessageToJson(longest).size() * static_cast<size_t>(response.chunks_size()) + kHeadRoom);
  for (int begin = 0; begin < response.chunks_size(); begin += kPieceChunks) {
    v1::SplitDocumentResponse piece;
    for (int i = begin; i < std::min(begin + kPieceChunks, response.chunks_size()); ++i) {
      *piece.add_chunks() = response.chunks(i);
    }
    const std::string printed = MessageToJson(piece);
    absl::StrAppend(
        &json, begin == 0 ? "" : ",",
        absl::string_view(printed).substr(kBegin.size(), printed.size() - kBegin.size() - end_size));
  }
  v1::SplitDocumentResponse without_chunks;
  without_chunks.set_next_byte(response.next_byte());
  absl::StrAppend(&json, absl::string_view(MessageToJson(without_chunks)).substr(kBegin.size()));
  return json;
}

}  // namespace kvblend::server
