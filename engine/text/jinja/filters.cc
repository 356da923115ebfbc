// Filters: {{ value | name(arguments) }}, as Jinja has them; tojson as transformers has it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text::jinja {
namespace {

// What a filter is called with.
struct FilterCall {
  std::string_view name;
  const Value& input;
  const CallValues& arguments;
  Budget* budget;

  absl::Status Check(size_t required, std::initializer_list<std::string_view> names) const {
    return arguments.Check(name, required, names);
  }
  absl::StatusOr<std::string> Text() const { return ToText(input, budget); }
};
using Filter = absl::StatusOr<Value> (*)(const FilterCall& call);

// "a.b.0" of an item, as the filters that take an attribute's name do.
absl::StatusOr<Value> AttributeAt(const Value& item, const Value& path, Budget* budget) {
  if (!path.is(Kind::kString)) return Item(item, path, budget);
  Value value = item;
  KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(path.string().size())));
  for (const std::string& part : SplitAt(path.string(), ".", -1)) {
    int64_t index = 0;
    if (!part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit) &&
        absl::SimpleAtoi(part, &index)) {
      KVBLEND_ASSIGN_OR_RETURN(value, Item(value, Value::Integer(index), budget));
    } else {
      KVBLEND_ASSIGN_OR_RETURN(value, Item(value, Value::String(part), budget));
    }
  }
  return value;
}

// Filters that go through items one by one take none, and all else that is not true, for no items.
absl::StatusOr<Items> IterateIfAny(const Value& value, Budget* budget) {
  if (!value.Truth()) return Items();
  return Iterate(value, budget);
}

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

absl::StatusOr<Value> Join(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"d", "attribute"}));
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  std::string separator;
  if (const Value* given = call.arguments.Get(0, "d")) {
    KVBLEND_ASSIGN_OR_RETURN(separator, ToText(*given, call.budget));
  }
  const Value* attribute = call.arguments.Get(1, "attribute");
  std::string text;
  bool first = true;
  for (Value item : items) {
    if (!first) text += separator;
    first = false;
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      KVBLEND_ASSIGN_OR_RETURN(item, AttributeAt(item, *attribute, call.budget));
    }
    KVBLEND_ASSIGN_OR_RETURN(const std::string part, ToText(item, call.budget));
    text += part;
    if (text.size() > kMaxStringBytes) break;  // refused below
  }
  return MakeString(std::move(text), call.budget);
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

// select, reject, selectattr and rejectattr: items for which a test holds, or does not.
absl::StatusOr<Value> Choose(const FilterCall& call) {
  const bool by_attribute = call.name.ends_with("attr");
  const bool wanted = call.name.starts_with("select");
  KVBLEND_ASSIGN_OR_RETURN(const Items items, IterateIfAny(call.input, call.budget));
  CallValues rest;
  rest.positional = call.arguments.positional;
  if (!call.arguments.named.empty())
    return absl::UnimplementedError(Message(call.name, " has named arguments"));
  const auto take = [&rest]() {
    Value value = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return value;
  };
  Value attribute;
  if (by_attribute) {
    if (rest.positional.empty()) return absl::InvalidArgumentError(Message(call.name, " needs an attribute"));
    attribute = take();
  }
  std::optional<Value> test;
  if (!rest.positional.empty()) {
    test = take();
    if (!test->is(Kind::kString))
      return absl::InvalidArgumentError(Message(call.name, ": a test has a name"));
  }
  Items chosen;
  for (const Value& item : items) {
    KVBLEND_RETURN_IF_ERROR(call.budget->Spend(1));
    Value looked_at = item;
    if (by_attribute) {
      KVBLEND_ASSIGN_OR_RETURN(looked_at, AttributeAt(item, attribute, call.budget));
    }
    bool holds = looked_at.Truth();
    if (test) {
      KVBLEND_ASSIGN_OR_RETURN(holds, ApplyTest(test->string(), looked_at, rest, call.budget));
    }
    if (holds == wanted) chosen.push_back(item);
  }
  return MakeList(std::move(chosen), call.budget);
}

absl::StatusOr<Value> Map(const FilterCall& call) {
  KVBLEND_ASSIGN_OR_RETURN(const Items items, IterateIfAny(call.input, call.budget));
  const CallValues& arguments = call.arguments;
  Items mapped;
  if (arguments.positional.empty()) {
    KVBLEND_RETURN_IF_ERROR(call.Check(0, {"attribute", "default"}));
    const Value* attribute = arguments.Get(0, "attribute");
    if (attribute == nullptr) return absl::InvalidArgumentError("map needs a filter or an attribute");
    const Value* otherwise = arguments.Get(1, "default");
    for (const Value& item : items) {
      KVBLEND_RETURN_IF_ERROR(call.budget->Spend(1));
      KVBLEND_ASSIGN_OR_RETURN(Value value, AttributeAt(item, *attribute, call.budget));
      if (value.is(Kind::kUndefined) && otherwise != nullptr) value = *otherwise;
      mapped.push_back(std::move(value));
    }
    return MakeList(std::move(mapped), call.budget);
  }
  const Value& filter = arguments.positional[0];
  // Each of them in itself would nest without an end.
  if (!filter.is(Kind::kString) || filter.string() == "map") {
    return absl::InvalidArgumentError("map needs the name of another filter");
  }
  CallValues rest;
  rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  rest.named = arguments.named;
  for (const Value& item : items) {
    KVBLEND_RETURN_IF_ERROR(call.budget->Spend(1));
    KVBLEND_ASSIGN_OR_RETURN(Value value, ApplyFilter(filter.string(), item, rest, call.budget));
    mapped.push_back(std::move(value));
  }
  return MakeList(std::move(mapped), call.budget);
}

absl::StatusOr<Value> AsList(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(Items items, Iterate(call.input, call.budget));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> FirstOrLast(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  if (items.empty()) return Value::Undefined(Message("the ", call.name, " item of an empty list"));
  return call.name == "first" ? items.front() : items.back();
}

absl::StatusOr<Value> ItemsOf(const FilterCall& call) {
  if (call.input.is(Kind::kUndefined)) return Value::List({});
  if (!call.input.is(Kind::kDict)) return absl::InvalidArgumentError("items: the value is no dict");
  return CallMethod(call.input, "items", call.arguments, call.budget);
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
    if (!absl::SimpleAtod(text, &number)) return otherwise;
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

absl::StatusOr<Value> Unique(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"case_sensitive"}));
  const bool exact = call.arguments.Truth(0, "case_sensitive", false);
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  Items kept, keys;
  for (const Value& item : items) {
    const Value key = item.is(Kind::kString) && !exact ? Value::String(Lower(item.string())) : item;
    bool known = false;
    for (const Value& other : keys) {
      KVBLEND_ASSIGN_OR_RETURN(known, Equal(other, key, call.budget));
      if (known) break;
    }
    if (known) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return MakeList(std::move(kept), call.budget);
}

// sort, min and max; texts without regard to case unless that is asked for.
absl::StatusOr<Value> Ordered(const FilterCall& call) {
  const bool sort = call.name == "sort";
  KVBLEND_RETURN_IF_ERROR(sort ? call.Check(0, {"reverse", "case_sensitive", "attribute"})
                               : call.Check(0, {"case_sensitive", "attribute"}));
  const bool reverse = sort ? call.arguments.Truth(0, "reverse", false) : call.name == "max";
  const bool exact = call.arguments.Truth(sort ? 1 : 0, "case_sensitive", false);
  const Value* attribute = call.arguments.Get(sort ? 2 : 1, "attribute");
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  std::vector<std::pair<Value, size_t>> keys;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      KVBLEND_ASSIGN_OR_RETURN(key, AttributeAt(item, *attribute, call.budget));
    }
    if (key.is(Kind::kString) && !exact) key = Value::String(Lower(key.string()));
    // A strict order needs items of one kind; NaN has none.
    const bool first_kind =
        keys.empty() || (key.is_number() && keys[0].first.is_number()) || key.kind() == keys[0].first.kind();
    if (!first_kind || (!key.is_number() && !key.is(Kind::kString)) ||
        (key.is_number() && std::isnan(key.number()))) {
      return absl::InvalidArgumentError(Message(call.name, ": the items have no order"));
    }
    keys.emplace_back(std::move(key), keys.size());
  }
  KVBLEND_RETURN_IF_ERROR(call.budget->Spend(static_cast<int64_t>(items.size()) * 16));
  Budget unlimited({.steps = std::numeric_limits<int64_t>::max()});
  std::stable_sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    const int order = Compare(a.first, b.first, &unlimited).value_or(0);
    return reverse ? order > 0 : order < 0;
  });
  if (!sort) {
    return keys.empty() ? Value::Undefined(Message("the ", call.name, " of nothing")) : items[keys[0].second];
  }
  Items sorted;
  for (const auto& [key, index] : keys) sorted.push_back(items[index]);
  return MakeList(std::move(sorted), call.budget);
}

absl::StatusOr<Value> Reversed(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  KVBLEND_ASSIGN_OR_RETURN(Items items, Iterate(call.input, call.budget));
  std::reverse(items.begin(), items.end());
  if (!call.input.is(Kind::kString)) return MakeList(std::move(items), call.budget);
  std::string text;
  for (const Value& character : items) text += character.string();
  return MakeString(std::move(text), call.budget);
}

absl::StatusOr<Value> Sum(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"attribute", "start"}));
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  const Value* attribute = call.arguments.Get(0, "attribute");
  const Value* start = call.arguments.Get(1, "start");
  Value sum = start == nullptr ? Value::Integer(0) : *start;
  for (Value item : items) {
    KVBLEND_RETURN_IF_ERROR(call.budget->Spend(1));
    if (attribute != nullptr && !attribute->is(Kind::kNone)) {
      KVBLEND_ASSIGN_OR_RETURN(item, AttributeAt(item, *attribute, call.budget));
    }
    KVBLEND_ASSIGN_OR_RETURN(sum, Binary("+", sum, item, call.budget));
  }
  return sum;
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
  return Value::Float(std::nearbyint(call.input.number()));  // halves to even, as Python
}

absl::StatusOr<Value> DictSort(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  if (!call.input.is(Kind::kDict)) return absl::InvalidArgumentError("dictsort: the value is no dict");
  Pairs pairs = call.input.pairs();
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return Lower(a.first) < Lower(b.first); });
  KVBLEND_ASSIGN_OR_RETURN(const Value sorted, Value::Dict(std::move(pairs)));
  return CallMethod(sorted, "items", {}, call.budget);
}

absl::StatusOr<Value> Attr(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(1, {"name"}));
  KVBLEND_ASSIGN_OR_RETURN(const Value* name, call.arguments.GetOf(Kind::kString, "attr", 0, "name"));
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
  const auto found = FilterTable().find(name);
  if (found == FilterTable().end()) {
    return absl::UnimplementedError(Message("the filter '", name.substr(0, 60), "' is not implemented"));
  }
  return found->second({name, input, arguments, budget});
}

}  // namespace kvblend::text::jinja
