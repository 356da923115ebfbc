#include "server/convert/parse_message.h"

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
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
      if (const auto offset = FindInvalidUtf8(value)) {
        return absl::StrCat(path, " is not valid UTF-8 at byte ", *offset, " of ", value.size(),
                            "; allowed: UTF-8 text");
      }
    } else if (declared->type() == FieldDescriptor::TYPE_MESSAGE) {
      std::string found = FindBadString(value, *declared->message_type(), absl::StrCat(path, "."));
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t i = 0;
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  while (i < text.size()) {
    const uint8_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    // Length of the sequence, and the range of its second byte, which is where overlong forms, surrogates and
    // code points above U+10FFFF show.
    size_t length = 0;
    uint8_t low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return i;
    }
    if (text.size() - i < length) return i;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    }
    i += length;
  }
  return std::nullopt;
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
