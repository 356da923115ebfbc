#include "server/convert/parse_message.h"

#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace kvblend::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Describes the first string field of `bytes` that is not UTF-8; empty if there is none. Recursion is bounded
// by the nesting of the message types, which are not recursive.
std::string FindBadString(std::string_view bytes, const Descriptor& descriptor, const std::string& prefix) {
  UnknownFieldSet fields;
  if (!fields.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return "";
  std::map<int, int> seen;  // field number -> occurrences so far, for the index of a repeated field
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* declared = descriptor.FindFieldByNumber(field.number());
    if (declared == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    std::string path = absl::StrCat(prefix, declared->name());
    if (declared->is_repeated()) absl::StrAppend(&path, "[", seen[field.number()]++, "]");
    const std::string& value = field.length_delimited();
    if (declared->type() == FieldDescriptor::TYPE_STRING) {
      std::string problem = Utf8Problem(path, value);
      if (!problem.empty()) return problem;
    } else if (declared->type() == FieldDescriptor::TYPE_MESSAGE) {
      std::string found = FindBadString(value, *declared->message_type(), absl::StrCat(path, "."));
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace

std::string Utf8Problem(std::string_view field, std::string_view value) {
  const std::optional<size_t> offset = text::FirstInvalidUtf8(value);
  if (!offset.has_value()) return "";
  return absl::StrCat(absl::string_view(field.data(), field.size()), " is not valid UTF-8 at byte ", *offset,
                      " of ", value.size(), "; allowed: UTF-8 text");
}

absl::Status ParseMessage(std::string_view bytes, google::protobuf::Message* message) {
  const std::string& name = message->GetDescriptor()->full_name();
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", name, " has ", bytes.size(), " bytes; allowed: below 2 GiB"));
  }
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return absl::OkStatus();
  const std::string found = FindBadString(bytes, *message->GetDescriptor(), "");
  if (!found.empty()) return absl::InvalidArgumentError(found);
  return absl::InvalidArgumentError(
      absl::StrCat("the request's ", bytes.size(), " bytes are not a well-formed ", name));
}

}  // namespace kvblend::server
