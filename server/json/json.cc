#include "server/json/json.h"

#include <cmath>
#include <exception>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

constexpr char kParamPayload[] = "kvblend/param";
constexpr size_t kShownBytes = 80;

/// Ends a parse: the library's callback can do so by an exception only.
struct TooMuch : std::exception {
  explicit TooMuch(std::string text) : what_is_wrong(std::move(text)) {}
  const char* what() const noexcept override { return what_is_wrong.c_str(); }
  const std::string what_is_wrong;
};

/// A value for messages, cut.
std::string Show(const Json& value) {
  if (value.is_structured()) {
    return absl::StrCat(value.is_array() ? "an array of " : "an object with ", value.size(),
                        value.is_array() ? " values" : " members");
  }
  const std::string text = ToText(value);
  if (text.size() <= kShownBytes) return text;
  return absl::StrCat(value.is_string() ? "a string" : "a number", " of ", text.size(), " bytes");
}

bool IsNothing(const Json& value) {
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

}  // namespace

absl::StatusOr<Json> ParseObject(std::string_view bytes) {
  int num_values = 0;
  std::vector<std::set<std::string>> members;  // of the objects around what is being parsed
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth) throw TooMuch(absl::StrCat("is nested more than ", kMaxJsonDepth, " deep"));
    switch (event) {
      case Json::parse_event_t::object_start:
        members.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        members.pop_back();
        break;
      case Json::parse_event_t::key: {
        const std::string& name = parsed.get_ref<const std::string&>();
        // Parsers choose one of two members with the same name in silence.
        if (!members.back().insert(name).second) {
          throw TooMuch(absl::StrCat("has the member '", name.substr(0, kShownBytes), "' twice"));
        }
        break;
      }
      case Json::parse_event_t::array_start:
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    if (++num_values > 2 * kMaxJsonValues)
      throw TooMuch(absl::StrCat("has more than ", kMaxJsonValues, " values"));
    return true;
  };
  try {
    Json json = Json::parse(bytes, check);
    if (json.is_object()) return json;
    return absl::InvalidArgumentError("the body is no JSON object");
  } catch (const TooMuch& error) {
    return absl::InvalidArgumentError(absl::StrCat("the body's JSON ", error.what_is_wrong));
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("the body is no JSON: wrong at byte ", error.byte));
  } catch (const Json::out_of_range&) {
    return absl::InvalidArgumentError("the body's JSON has a number beyond what a double holds");
  } catch (const std::exception&) {
    return absl::InvalidArgumentError("the body is no JSON");
  }
}

std::string ToText(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

absl::Status FieldError(const std::string& param, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kParamPayload, absl::Cord(param));
  return status;
}

std::string ParamOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kParamPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object())
    Note(FieldError(path_, absl::StrCat(path_, " is ", Show(object), "; allowed: an object")));
}

std::string FieldReader::PathOf(const std::string& name) const {
  return path_.empty() ? name : absl::StrCat(path_, ".", name);
}

void FieldReader::Note(absl::Status status) { status_.Update(std::move(status)); }

const Json* FieldReader::Value(const std::string& name) {
  known_.insert(name);
  if (!ok()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> FieldReader::String(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Note(FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value), "; allowed: a string")));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Integer(const std::string& name, int64_t min, int64_t max) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  const bool too_large =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value->is_number_integer() && !too_large) {
    const int64_t number = value->get<int64_t>();
    if (number >= min && number <= max) return number;
  }
  Note(FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value),
                                             "; allowed: an integer from ", min, " to ", max)));
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::Bits64(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    uint64_t bits = 0;
    // The comparison refuses spaces and signs, which the parser takes.
    if (absl::SimpleAtoi(text, &bits) && absl::StrCat(bits) == text) return bits;
  }
  Note(FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value),
                                             "; allowed: an integer from ", INT64_MIN, " to ", UINT64_MAX)));
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  Note(FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value), "; allowed: a number")));
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Note(
      FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value), "; allowed: true or false")));
  return std::nullopt;
}

void FieldReader::Ignore(std::initializer_list<const char*> names) {
  known_.insert(names.begin(), names.end());
}

void FieldReader::Refuse(std::initializer_list<const char*> names, const std::string& why) {
  for (const char* name : names) {
    const Json* value = Value(name);
    if (value == nullptr || IsNothing(*value)) continue;
    Note(FieldError(PathOf(name), absl::StrCat(PathOf(name), " is ", Show(*value), "; ", why)));
  }
}

void FieldReader::RefuseUnless(const std::string& name, const Json& allowed) {
  const Json* value = Value(name);
  if (value == nullptr || *value == allowed) return;
  Note(FieldError(PathOf(name),
                  absl::StrCat(PathOf(name), " is ", Show(*value), "; allowed: ", ToText(allowed))));
}

absl::Status FieldReader::Finish() {
  if (!ok() || !object_.is_object()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string shown = PathOf(name.substr(0, kShownBytes));
    return FieldError(shown, absl::StrCat(shown, " is not a field that this server knows"));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server
