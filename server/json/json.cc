#include "server/json/json.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json_events.h"

namespace kvblend::server {
namespace {

constexpr char kParamPayload[] = "kvblend/param";
constexpr char kLoggedPayload[] = "kvblend/logged";
constexpr size_t kShownBytes = 80;

/// Checks a body's limits before memory is taken for its values.
class Limits final : public JsonEvents<Json> {
 public:
  const absl::Status& status() const { return status_; }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    const bool out_of_range = dynamic_cast<const Json::out_of_range*>(&error) != nullptr;
    status_ = absl::InvalidArgumentError(out_of_range
                                             ? "the body's JSON has a number beyond what a double holds"
                                             : absl::StrCat("the body is no JSON: wrong at byte ", position));
    return false;
  }

 private:
  bool Value() override { return Count(); }
  bool Key(const std::string& name) override {
    // Parsers choose one of two members with the same name in silence.
    if (!members_.back().insert(name).second) {
      return TooMuch(absl::StrCat("has the member ", Quoted(name), " twice"), "has a member twice");
    }
    return Count();
  }
  bool Open() override {
    if (!Count()) return false;
    members_.emplace_back();
    return true;
  }
  bool Close() override {
    members_.pop_back();
    return Count();
  }
  bool Count() {
    if (members_.size() > kMaxJsonDepth) {
      return TooMuch(absl::StrCat("is nested more than ", kMaxJsonDepth, " deep"));
    }
    if (++num_values_ <= 2 * kMaxJsonValues) return true;
    return TooMuch(absl::StrCat("has more than ", kMaxJsonValues, " values"));
  }
  bool TooMuch(const std::string& what_is_wrong) { return TooMuch(what_is_wrong, what_is_wrong); }
  bool TooMuch(const std::string& what_is_wrong, const std::string& logged) {
    status_ = LogAs(absl::InvalidArgumentError(absl::StrCat("the body's JSON ", what_is_wrong)),
                    absl::StrCat("the body's JSON ", logged));
    return false;
  }

  absl::Status status_;
  int num_values_ = 0;
  std::vector<std::set<std::string>> members_;  // of the objects and arrays around what is being read
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

/// Clients of languages with one type of numbers write 1.0 for 1.
std::optional<int64_t> WholeNumber(const Json& value) {
  constexpr double kAllExact = 9007199254740992;  // 2^53: beyond that a double stands for several integers
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) <= kAllExact) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

bool IsNothing(const Json& value) {
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

}  // namespace

absl::StatusOr<Json> ParseObject(std::string_view bytes) try {
  Limits limits;
  if (!Json::sax_parse(bytes, &limits)) return limits.status();
  Json json = Json::parse(bytes, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError("the body is no JSON object");
} catch (const std::bad_alloc&) {
  // The memory taken so far is free again, and smaller requests are served.
  return absl::ResourceExhaustedError("there is no memory for the body's JSON");
}

std::string ToText(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string EscapeLineEnds(std::string_view json) {
  return absl::StrReplaceAll(
      absl::string_view(json.data(), json.size()),
      {{"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}});
}

absl::Status FieldError(const std::string& param, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kParamPayload, absl::Cord(param));
  return status;
}

absl::Status ValueError(const std::string& param, const std::string& value, const std::string& allowed) {
  return LogAs(FieldError(param, absl::StrCat(param, " is ", value, "; allowed: ", allowed)),
               absl::StrCat(param, " is something else; allowed: ", allowed));
}

absl::Status LogAs(absl::Status status, const std::string& logged) {
  status.SetPayload(kLoggedPayload, absl::Cord(logged));
  return status;
}

std::string LoggedMessage(const absl::Status& status) {
  const auto logged = status.GetPayload(kLoggedPayload);
  return logged.has_value() ? std::string(*logged) : std::string(status.message());
}

std::string Quoted(std::string_view text) {
  return absl::StrCat("'", absl::string_view(text.data(), std::min(text.size(), kShownBytes)), "'");
}

std::string ParamOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kParamPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

FieldReader::FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) Note(ValueError(path_, Show(object), "an object"));
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
  Note(ValueError(PathOf(name), Show(*value), "a string"));
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Integer(const std::string& name, int64_t min, int64_t max) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  const bool too_large =
      value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  std::optional<int64_t> number = WholeNumber(*value);
  if (value->is_number_integer() && !too_large) number = value->get<int64_t>();
  if (number.has_value() && *number >= min && *number <= max) return number;
  Note(ValueError(PathOf(name), Show(*value), absl::StrCat("an integer from ", min, " to ", max)));
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::Bits64(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  if (const auto number = WholeNumber(*value)) return static_cast<uint64_t>(*number);
  if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    uint64_t bits = 0;
    // The comparison refuses spaces and signs, which the parser takes.
    if (absl::SimpleAtoi(text, &bits) && absl::StrCat(bits) == text) return bits;
  }
  Note(ValueError(PathOf(name), Show(*value),
                  absl::StrCat("an integer from ", INT64_MIN, " to ", UINT64_MAX)));
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  Note(ValueError(PathOf(name), Show(*value), "a number"));
  return std::nullopt;
}

std::optional<bool> FieldReader::Bool(const std::string& name) {
  const Json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Note(ValueError(PathOf(name), Show(*value), "true or false"));
  return std::nullopt;
}

void FieldReader::Ignore(std::initializer_list<const char*> names) {
  known_.insert(names.begin(), names.end());
}

void FieldReader::Refuse(std::initializer_list<const char*> names, const std::string& allowed) {
  for (const char* name : names) {
    const Json* value = Value(name);
    if (value == nullptr || IsNothing(*value)) continue;
    Note(ValueError(PathOf(name), Show(*value), allowed));
  }
}

void FieldReader::RefuseUnless(const std::string& name, const Json& allowed) {
  const Json* value = Value(name);
  if (value == nullptr || *value == allowed) return;
  Note(ValueError(PathOf(name), Show(*value), ToText(allowed)));
}

absl::Status FieldReader::Finish() {
  if (!ok() || !object_.is_object()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string shown = PathOf(name.substr(0, kShownBytes));
    return LogAs(
        FieldError(shown, absl::StrCat(shown, " is not a field that this server knows")),
        absl::StrCat(path_.empty() ? "the body" : path_, " has a field that this server does not know"));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server
