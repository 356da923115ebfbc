// Values as text: str() and repr() of Python, and JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {
namespace {

// Writes into one string, and stops when that grows too long.
class ValueWriter {
 public:
  ValueWriter(Budget* budget, std::string* output) : budget_(budget), output_(output) {}

  absl::Status Repr(const Value& value) {
    KVBLEND_RETURN_IF_ERROR(Step());
    switch (value.kind()) {
      case Value::Kind::kString:
        AppendQuoted(value.string());
        return absl::OkStatus();
      case Value::Kind::kList: {
        *output_ += '[';
        const char* separator = "";
        for (const Value& item : value.items()) {
          *output_ += separator;
          KVBLEND_RETURN_IF_ERROR(Repr(item));
          separator = ", ";
        }
        *output_ += ']';
        return absl::OkStatus();
      }
      case Value::Kind::kDict: {
        *output_ += '{';
        const char* separator = "";
        for (const auto& [key, item] : value.pairs()) {
          *output_ += separator;
          AppendQuoted(key);
          *output_ += ": ";
          KVBLEND_RETURN_IF_ERROR(Repr(item));
          separator = ", ";
        }
        *output_ += '}';
        return absl::OkStatus();
      }
      case Value::Kind::kUndefined:
        *output_ += "Undefined";
        return absl::OkStatus();
      default:
        return Plain(value);
    }
  }

  absl::Status Plain(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kUndefined:
        break;
      case Value::Kind::kNone:
        *output_ += "None";
        break;
      case Value::Kind::kBool:
        *output_ += value.boolean() ? "True" : "False";
        break;
      case Value::Kind::kInteger:
        absl::StrAppend(output_, value.integer());
        break;
      case Value::Kind::kFloat:
        *output_ += FloatText(value.number());
        break;
      case Value::Kind::kString:
        *output_ += value.string();
        break;
      case Value::Kind::kList:
      case Value::Kind::kDict:
        return Repr(value);
      case Value::Kind::kNamespace:
      case Value::Kind::kFunction:
        return absl::InvalidArgumentError(Message("a ", value.KindName(), " has no text"));
    }
    return absl::OkStatus();
  }

  absl::Status Json(const Value& value, std::optional<int> indent, bool sort_keys, int level) {
    KVBLEND_RETURN_IF_ERROR(Step());
    switch (value.kind()) {
      case Value::Kind::kNone:
        *output_ += "null";
        return absl::OkStatus();
      case Value::Kind::kBool:
        *output_ += value.boolean() ? "true" : "false";
        return absl::OkStatus();
      case Value::Kind::kInteger:
        return Plain(value);
      case Value::Kind::kFloat:
        if (std::isnan(value.number())) {
          *output_ += "NaN";
        } else if (std::isinf(value.number())) {
          *output_ += value.number() < 0 ? "-Infinity" : "Infinity";
        } else {
          return Plain(value);
        }
        return absl::OkStatus();
      case Value::Kind::kString:
        AppendJsonString(value.string());
        return absl::OkStatus();
      case Value::Kind::kList: {
        *output_ += '[';
        bool first = true;
        for (const Value& item : value.items()) {
          AppendBreak(first, indent, level + 1);
          KVBLEND_RETURN_IF_ERROR(Json(item, indent, sort_keys, level + 1));
          first = false;
        }
        if (!first) AppendLine(indent, level);
        *output_ += ']';
        return absl::OkStatus();
      }
      case Value::Kind::kDict: {
        std::vector<const std::pair<std::string, Value>*> pairs;
        for (const auto& pair : value.pairs()) pairs.push_back(&pair);
        if (sort_keys) {
          std::sort(pairs.begin(), pairs.end(),
                    [](const auto* a, const auto* b) { return a->first < b->first; });
        }
        *output_ += '{';
        bool first = true;
        for (const auto* pair : pairs) {
          AppendBreak(first, indent, level + 1);
          AppendJsonString(pair->first);
          *output_ += ": ";
          KVBLEND_RETURN_IF_ERROR(Json(pair->second, indent, sort_keys, level + 1));
          first = false;
        }
        if (!first) AppendLine(indent, level);
        *output_ += '}';
        return absl::OkStatus();
      }
      default:
        return absl::InvalidArgumentError(Message("tojson: JSON has no ", value.KindName()));
    }
  }

 private:
  absl::Status Step() {
    KVBLEND_RETURN_IF_ERROR(budget_->Spend(1));
    if (output_->size() <= kMaxStringBytes) return absl::OkStatus();
    return budget_->CheckString(output_->size());
  }

  // Python quotes with ' unless that is in the text and " is not.
  void AppendQuoted(const std::string& text) {
    const char quote =
        text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
    *output_ += quote;
    for (const char c : text) {
      if (c == quote || c == '\\') {
        *output_ += '\\';
        *output_ += c;
      } else if (c == '\n') {
        *output_ += "\\n";
      } else if (c == '\r') {
        *output_ += "\\r";
      } else if (c == '\t') {
        *output_ += "\\t";
      } else if ((c >= 0 && c < 0x20) || c == 0x7F) {
        absl::StrAppendFormat(output_, "\\x%02x", static_cast<int>(c));
      } else {
        *output_ += c;
      }
    }
    *output_ += quote;
  }

  void AppendJsonString(const std::string& text) {
    *output_ += '"';
    for (const char c : text) {
      switch (c) {
        case '"':
          *output_ += "\\\"";
          break;
        case '\\':
          *output_ += "\\\\";
          break;
        case '\n':
          *output_ += "\\n";
          break;
        case '\r':
          *output_ += "\\r";
          break;
        case '\t':
          *output_ += "\\t";
          break;
        case '\b':
          *output_ += "\\b";
          break;
        case '\f':
          *output_ += "\\f";
          break;
        default:
          if (c >= 0 && c < 0x20) {
            absl::StrAppendFormat(output_, "\\u%04x", static_cast<int>(c));
          } else {
            *output_ += c;
          }
      }
    }
    *output_ += '"';
  }

  void AppendLine(std::optional<int> indent, int level) {
    if (!indent) return;
    *output_ += '\n';
    output_->append(static_cast<size_t>(*indent) * static_cast<size_t>(level), ' ');
  }

  void AppendBreak(bool first, std::optional<int> indent, int level) {
    if (!first) *output_ += indent ? "," : ", ";
    AppendLine(indent, level);
  }

  Budget* budget_;
  std::string* output_;
};

}  // namespace

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  if (error != std::errc()) return "";
  // "-d.ddde-XX": the fewest digits that read back as the same number.
  const std::string text(buffer, end);
  const size_t mark = text.find('e');
  int exponent = 0;
  const char* exponent_begin = text.c_str() + mark + (text[mark + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, text.c_str() + text.size(), exponent);
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(sign.size(), mark - sign.size())) {
    if (c != '.') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : "";
    return absl::StrFormat("%s%c%se%c%02d", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                           std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

absl::StatusOr<std::string> ToText(const Value& value, Budget* budget) {
  std::string text;
  KVBLEND_RETURN_IF_ERROR(ValueWriter(budget, &text).Plain(value));
  KVBLEND_RETURN_IF_ERROR(budget->Allocate(text.size()));
  return text;
}

absl::StatusOr<std::string> ToJson(const Value& value, std::optional<int> indent, bool sort_keys,
                                   Budget* budget) {
  std::string text;
  KVBLEND_RETURN_IF_ERROR(ValueWriter(budget, &text).Json(value, indent, sort_keys, 0));
  KVBLEND_RETURN_IF_ERROR(budget->CheckString(text.size()));
  return text;
}

}  // namespace kvblend::text::jinja
