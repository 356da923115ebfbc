#include "server/cli/field_flags.h"

#include <CLI/CLI.hpp>
#include <cassert>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "server/cli/files.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// The fields on the way to `path`; the last is the one meant. A path that leads nowhere is a mistake in the
/// table.
std::vector<const FieldDescriptor*> FieldsOf(const Descriptor* message, const char* path) {
  std::vector<const FieldDescriptor*> fields;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    fields.push_back(message->FindFieldByName(std::string(name)));
    assert(fields.back() != nullptr);
    message = fields.back()->message_type();
  }
  return fields;
}

/// "query (default), hkvd, link or none"
std::string ChoicesOf(const google::protobuf::EnumDescriptor& enumeration) {
  const std::vector<std::string> names = absl::StrSplit(ListNames(enumeration), ", ");
  std::string choices = absl::StrCat(names.front(), " (default)");
  for (size_t i = 1; i < names.size(); ++i) {
    absl::StrAppend(&choices, i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  return choices;
}

/// Sets a field to what `text` says, or adds it to a repeated one.
absl::Status SetField(const char* flag, const std::string& text, const FieldDescriptor* field,
                      Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const auto refused = [&](const std::string& allowed) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is '", text, "'; allowed: ", allowed));
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      KVBLEND_RETURN_IF_ERROR(CheckUtf8Of(flag, text));
      if (field->is_repeated()) {
        reflection.AddString(&message, field, text);
      } else {
        reflection.SetString(&message, field, text);
      }
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return refused("a whole number");
      reflection.SetInt32(&message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return refused("a whole number from 0");
      reflection.SetUInt64(&message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return refused("a number");
      reflection.SetDouble(&message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      reflection.SetBool(&message, field, text == "true");
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* value = FindValue(*field->enum_type(), text);
      if (value == nullptr) return refused(ListNames(*field->enum_type()));
      reflection.SetEnum(&message, field, value);
      return absl::OkStatus();
    }
    default:
      return refused("nothing, as flags have no values of this field's type");
  }
}

}  // namespace

void FieldFlags::Add(CLI::App& command, const Descriptor& message, const char* group,
                     absl::Span<const FieldFlag> rows) {
  std::map<std::string, CLI::Option*> without_value;  // by field
  for (const FieldFlag& row : rows) {
    const FieldDescriptor* field = FieldsOf(&message, row.field).back();
    Given& given = given_.emplace_back(Given{row});
    if (*row.type == '\0') {
      CLI::Option* option = command.add_flag_callback(
          row.name, [&given] { given.values = {given.flag.value}; }, row.help);
      option->group(group);
      const auto [other, added] = without_value.emplace(row.field, option);
      if (!added) option->excludes(other->second);
      continue;
    }
    std::string help = row.help;
    if (field->enum_type() != nullptr) absl::StrAppend(&help, ": ", ChoicesOf(*field->enum_type()));
    // As they were written: CLI11's own conversion to a list would take "{}" for an empty one.
    CLI::Option* option = command.add_option(
        row.name,
        [&given](const CLI::results_t& values) {
          given.values = values;
          return true;
        },
        help);
    option->expected(1)->type_name(row.type)->group(group);
    if (field->is_repeated()) option->take_all();
  }
}

absl::Status FieldFlags::Apply(Message& message) const {
  for (const auto& [flag, values] : given_) {
    if (values.empty()) continue;
    const std::vector<const FieldDescriptor*> path = FieldsOf(message.GetDescriptor(), flag.field);
    Message* owner = &message;
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      owner = owner->GetReflection()->MutableMessage(owner, path[i]);
    }
    if (path.back()->is_repeated()) owner->GetReflection()->ClearField(owner, path.back());
    for (const std::string& value : values) {
      KVBLEND_RETURN_IF_ERROR(SetField(flag.name, value, path.back(), *owner));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
