// Filters of texts and numbers, as Jinja has them; tojson as transformers has it.
#include "engine/text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text::jinja {
namespace {

absl::StatusOr<Value> Trim(const FilterCall& call) {
  KVBLEND_ASSIGN_OR_RETURN(std::string text, call.Text());
  return CallMethod(Value::String(std::move(text)), "strip", call.arguments, call.budget);
}

absl::StatusOr<Value> ChangeCase(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(const std::string text, call.Text());
  std::string changed = call.name == "upper"   ? Upper(text)
                        : call.name == "lower" ? Lower(text)
                        : call.name == "title" ? TitledWords(text)
                                               : Capitalized(text);
  return MakeString(std::move(changed), call.budget);
}

absl::StatusOr<Value> Json(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"indent", "ensure_ascii", "separators", "sort_keys"}));
  if (call.arguments.Truth(1, "ensure_ascii", false)) {
    return absl::UnimplementedError("tojson: ensure_ascii=true is not implemented");
  }
  const Value* separators = call.arguments.Get(2, "separators");
  if (separators != nullptr && !separators->is(Kind::kNone)) {
    return absl::UnimplementedError("tojson: separators are not implemented");
  }
  std::optional<int> indent;
  if (const Value* given = call.arguments.Get(0, "indent"); given != nullptr && !given->is(Kind::kNone)) {
    if (!given->is(Kind::kInteger) || given->integer() < 0 || given->integer() > 16) {
      return absl::InvalidArgumentError("tojson: allowed for indent: 0 to 16");
    }
    indent = static_cast<int>(given->integer());
  }
  KVBLEND_ASSIGN_OR_RETURN(
      std::string text, ToJson(call.input, indent, call.arguments.Truth(3, "sort_keys", false), call.budget));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> LengthOf(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  switch (call.input.kind()) {
    case Kind::kUndefined:
      return Value::Integer(0);
    case Kind::kString:
      return Value::Integer(Length(call.input.string()));
    case Kind::kList:
      return Value::Integer(static_cast<int64_t>(call.input.items().size()));
    case Kind::kDict:
      return Value::Integer(static_cast<int64_t>(call.input.pairs().size()));
    default:
      return absl::InvalidArgumentError(Message("a value of type ", call.input.KindName(), " has no length"));
  }
}

absl::StatusOr<Value> ReplaceIn(const FilterCall& call) {
  KVBLEND_ASSIGN_OR_RETURN(std::string text, call.Text());
  return CallMethod(Value::String(std::move(text)), "replace", call.arguments, call.budget);
}

absl::StatusOr<Value> Default(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"default_value", "boolean"}));
  const bool missing =
      call.input.is(Kind::kUndefined) || (call.arguments.Truth(1, "boolean", false) && !call.input.Truth());
  if (!missing) return call.input;
  const Value* otherwise = call.arguments.Get(0, "default_value");
  return otherwise == nullptr ? Value::String("") : *otherwise;
}

absl::StatusOr<Value> AsText(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  if (call.input.is(Kind::kString)) return call.input;
  KVBLEND_ASSIGN_OR_RETURN(std::string text, call.Text());
  return MakeString(std::move(text), call.budget);
}

absl::StatusOr<Value> AsNumber(const FilterCall& call) {
  const bool whole = call.name == "int";
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"default"}));
  const Value* given = call.arguments.Get(0, "default");
  const Value otherwise = given != nullptr ? *given : whole ? Value::Integer(0) : Value::Float(0);
  double number = 0;
  if (call.input.is(Kind::kString)) {
    const std::string text(Strip(call.input.string()));
    int64_t integer = 0;
    if (whole && absl::SimpleAtoi(text, &integer)) return Value::Integer(integer);
    // Python's float() takes no hexadecimal digits.
    if (text.find_first_of("xX") != std::string::npos || !absl::SimpleAtod(text, &number)) return otherwise;
  } else if (call.input.is_number()) {
    if (whole && !call.input.is(Kind::kFloat)) return Value::Integer(call.input.integer());
    number = call.input.number();
  } else {
    return otherwise;
  }
  if (!whole) return Value::Float(number);
  if (!(std::abs(number) < 9e18)) return otherwise;
  return Value::Integer(static_cast<int64_t>(number));
}

absl::StatusOr<Value> Absolute(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(Value positive, Negated("+", call.input));
  return positive.number() < 0 ? Negated("-", positive) : positive;
}

absl::StatusOr<Value> Indent(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"width", "first", "blank"}));
  KVBLEND_ASSIGN_OR_RETURN(const std::string text, call.Text());
  std::string prefix = "    ";
  if (const Value* width = call.arguments.Get(0, "width")) {
    if (width->is(Kind::kString)) {
      prefix = width->string();
    } else if (width->is(Kind::kInteger) && width->integer() >= 0 && width->integer() <= 1000) {
      prefix.assign(static_cast<size_t>(width->integer()), ' ');
    } else {
      return absl::InvalidArgumentError("indent: allowed for width: 0 to 1000, or a text");
    }
  }
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  if (prefix.size() > kMaxStringBytes / lines) return call.budget->CheckString(kMaxStringBytes + 1);
  const bool blank = call.arguments.Truth(2, "blank", false);
  std::string indented = call.arguments.Truth(1, "first", false) ? prefix : "";
  for (size_t i = 0; i < text.size(); ++i) {
    indented += text[i];
    const bool empty_line = i + 1 == text.size() || text[i + 1] == '\n';
    if (text[i] == '\n' && (blank || !empty_line)) indented += prefix;
  }
  return MakeString(std::move(indented), call.budget);
}

absl::StatusOr<Value> Escape(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(const std::string text, call.Text());
  std::string escaped;
  for (const char c : text) {
    static constexpr std::string_view kSpecial = "&<>\"'";
    static constexpr std::string_view kNames[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const size_t at = kSpecial.find(c);
    if (at == std::string_view::npos) {
      escaped += c;
    } else {
      escaped += kNames[at];
    }
  }
  return MakeString(std::move(escaped), call.budget);
}

absl::StatusOr<Value> Round(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"precision"}));
  if (!call.input.is_number()) return absl::InvalidArgumentError("round: the value is no number");
  KVBLEND_ASSIGN_OR_RETURN(const Value* precision,
                           call.arguments.GetOf(Kind::kInteger, "round", 0, "precision"));
  if (precision != nullptr && precision->integer() != 0) {
    return absl::UnimplementedError("round to another precision than 0 is not implemented");
  }
  if (!call.input.is(Kind::kFloat)) return Value::Integer(call.input.integer());
  return Value::Float(std::nearbyint(call.input.number()));  // halves to even, as Python
}

absl::StatusOr<Value> Attr(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(1, {"name"}));
  KVBLEND_ASSIGN_OR_RETURN(const Value* name, call.arguments.GetOf(Kind::kString, "attr", 0, "name"));
  KVBLEND_RETURN_IF_ERROR(CheckFind(call.input, name->string(), call.budget));
  return Attribute(call.input, name->string());
}

const absl::flat_hash_map<std::string_view, Filter>& FilterTable() {
  static const auto& table = *new absl::flat_hash_map<std::string_view, Filter>{
      {"trim", Trim},
      {"upper", ChangeCase},
      {"lower", ChangeCase},
      {"title", ChangeCase},
      {"capitalize", ChangeCase},
      {"tojson", Json},
      {"length", LengthOf},
      {"count", LengthOf},
      {"join", Join},
      {"replace", ReplaceIn},
      {"default", Default},
      {"d", Default},
      {"select", Choose},
      {"reject", Choose},
      {"selectattr", Choose},
      {"rejectattr", Choose},
      {"map", Map},
      {"list", AsList},
      {"first", FirstOrLast},
      {"last", FirstOrLast},
      {"items", ItemsOf},
      {"string", AsText},
      {"safe", AsText},
      {"int", AsNumber},
      {"float", AsNumber},
      {"abs", Absolute},
      {"unique", Unique},
      {"sort", Ordered},
      {"min", Ordered},
      {"max", Ordered},
      {"reverse", Reversed},
      {"sum", Sum},
      {"indent", Indent},
      {"escape", Escape},
      {"e", Escape},
      {"round", Round},
      {"dictsort", DictSort},
      {"attr", Attr},
  };
  return table;
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& input, const CallValues& arguments,
                                  Budget* budget) {
  if (input.is(Kind::kString)) KVBLEND_RETURN_IF_ERROR(budget->CheckScan(input.string().size()));
  const auto found = FilterTable().find(name);
  if (found == FilterTable().end()) {
    return absl::UnimplementedError(Message("the filter '", name.substr(0, 60), "' is not implemented"));
  }
  return found->second({name, input, arguments, budget});
}

}  // namespace kvblend::text::jinja
