#include "engine/text/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text::jinja {
namespace {

absl::Status IsUndefined(const Value& value) {
  return absl::InvalidArgumentError(Message(value.undefined_name(), " is undefined"));
}

absl::Status NotForOperands(std::string_view name, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) return IsUndefined(a);
  if (b.is(Kind::kUndefined)) return IsUndefined(b);
  return absl::InvalidArgumentError(
      Message("'", name, "' is not for values of type ", a.KindName(), " and ", b.KindName()));
}

absl::StatusOr<Value> OfIntegers(std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (name == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (name == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (name == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (name == "//" || name == "%") {
    if (b == 0) return absl::InvalidArgumentError("division by zero");
    overflow = a == std::numeric_limits<int64_t>::min() && b == -1;
    if (!overflow) {
      const int64_t remainder = a % b;
      const bool other_sign = remainder != 0 && (remainder < 0) != (b < 0);
      result = name == "%" ? remainder + (other_sign ? b : 0) : a / b - (other_sign ? 1 : 0);
    }
  }
  if (name == "**") {
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = 1;
    for (int64_t i = 0; i < b && !overflow && (a < -1 || a > 1); ++i) {
      overflow = __builtin_mul_overflow(result, a, &result);
    }
    if (a == 0 && b > 0) result = 0;
    if (a == -1 && b % 2 == 1) result = -1;
  }
  if (overflow) return absl::InvalidArgumentError(Message("'", name, "' gives a number that is too large"));
  return Value::Integer(result);
}

absl::StatusOr<Value> OfFloats(std::string_view name, double a, double b) {
  if (name == "+") return Value::Float(a + b);
  if (name == "-") return Value::Float(a - b);
  if (name == "*") return Value::Float(a * b);
  if (name == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (name == "/") return Value::Float(a / b);
  if (name == "//") return Value::Float(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value::Float(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

absl::StatusOr<Value> Repeated(const Value& value, int64_t times, Budget* budget) {
  times = std::max<int64_t>(times, 0);
  const size_t size = value.is(Kind::kString) ? value.string().size() : value.items().size();
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  const auto count = static_cast<size_t>(times),
             total = size > 0 && count > kMost / size ? kMost : size * count;
  if (value.is(Kind::kString)) {
    KVBLEND_RETURN_IF_ERROR(budget->CheckString(total));
    std::string text;
    for (int64_t i = 0; i < times && size > 0; ++i) text += value.string();
    return Value::String(std::move(text));
  }
  KVBLEND_RETURN_IF_ERROR(budget->CheckList(total));
  Items items;
  for (int64_t i = 0; i < times && size > 0; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return Value::List(std::move(items));
}

// Where a slice begins, in what has `size` entries.
struct SliceRange {
  int64_t begin;
  int64_t end;
  int64_t step;
};

absl::StatusOr<SliceRange> RangeOf(const Value& from, const Value& to, const Value& step, int64_t size) {
  for (const Value* part : {&from, &to, &step}) {
    if (part->is(Kind::kUndefined)) return IsUndefined(*part);
    if (!part->is(Kind::kNone) && !part->is(Kind::kInteger) && !part->is(Kind::kBool)) {
      return absl::InvalidArgumentError(Message("a slice has a bound of type ", part->KindName()));
    }
  }
  SliceRange range{.begin = 0, .end = 0, .step = step.is(Kind::kNone) ? 1 : step.integer()};
  if (range.step == 0) return absl::InvalidArgumentError("a slice has step 0");
  range.step = std::clamp<int64_t>(range.step, -size - 1, size + 1);
  const bool forward = range.step > 0;
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (part.is(Kind::kNone)) return otherwise;
    const int64_t index = part.integer() < 0 ? part.integer() + size : part.integer();
    return std::clamp<int64_t>(index, forward ? 0 : -1, forward ? size : size - 1);
  };
  range.begin = bound(from, forward ? 0 : size - 1);
  range.end = bound(to, forward ? size : -1);
  return range;
}

}  // namespace

absl::StatusOr<Value> MakeString(std::string text, Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(budget->CheckString(text.size()));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> MakeList(Items items, Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(budget->CheckList(items.size()));
  return Value::List(std::move(items));
}

absl::StatusOr<Items> Iterate(const Value& value, Budget* budget) {
  Items items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
      KVBLEND_RETURN_IF_ERROR(budget->CheckList(value.items().size()));
      return value.items();
    case Kind::kString: {
      const std::string& text = value.string();
      KVBLEND_RETURN_IF_ERROR(budget->CheckList(static_cast<size_t>(Length(text))));
      const std::vector<size_t> offsets = CharacterOffsets(text);
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        items.push_back(Value::String(text.substr(offsets[i], offsets[i + 1] - offsets[i])));
      }
      return items;
    }
    case Kind::kDict:
      KVBLEND_RETURN_IF_ERROR(budget->CheckList(value.pairs().size()));
      KVBLEND_RETURN_IF_ERROR(CheckKeys(value.pairs(), budget));
      for (const auto& [key, item] : value.pairs()) items.push_back(Value::String(key));
      return items;
    default:
      return absl::InvalidArgumentError(Message("a value of type ", value.KindName(), " is no list"));
  }
}

absl::StatusOr<Value> Binary(std::string_view name, const Value& a, const Value& b, Budget* budget) {
  if (name == "~") {
    KVBLEND_ASSIGN_OR_RETURN(std::string text, ToText(a, budget));
    KVBLEND_ASSIGN_OR_RETURN(const std::string right, ToText(b, budget));
    return MakeString(std::move(text) + right, budget);
  }
  if (a.is_number() && b.is_number()) {
    const bool floats = a.is(Kind::kFloat) || b.is(Kind::kFloat) || name == "/";
    return floats ? OfFloats(name, a.number(), b.number()) : OfIntegers(name, a.integer(), b.integer());
  }
  if (name == "+" && a.is(Kind::kString) && b.is(Kind::kString))
    return MakeString(a.string() + b.string(), budget);
  if (name == "+" && a.is(Kind::kList) && b.is(Kind::kList)) {
    KVBLEND_RETURN_IF_ERROR(budget->CheckList(a.items().size() + b.items().size()));
    Items items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value::List(std::move(items));
  }
  const auto repeats = [](const Value& value) { return value.is(Kind::kString) || value.is(Kind::kList); };
  const auto counts = [](const Value& value) { return value.is(Kind::kInteger) || value.is(Kind::kBool); };
  if (name == "*" && repeats(a) && counts(b)) return Repeated(a, b.integer(), budget);
  if (name == "*" && repeats(b) && counts(a)) return Repeated(b, a.integer(), budget);
  if (name == "%" && a.is(Kind::kString))
    return absl::UnimplementedError("'%' of a string is not implemented");
  return NotForOperands(name, a, b);
}

absl::StatusOr<Value> Negated(std::string_view name, const Value& value) {
  if (value.is(Kind::kUndefined)) return IsUndefined(value);
  if (!value.is_number()) {
    return absl::InvalidArgumentError(Message("'", name, "' is not for a value of type ", value.KindName()));
  }
  if (value.is(Kind::kFloat)) return Value::Float(name == "-" ? -value.number() : value.number());
  return OfIntegers(name == "-" ? "-" : "+", 0, value.integer());
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is(Kind::kString)) return NotForOperands("in", item, container);
      KVBLEND_RETURN_IF_ERROR(budget->CheckSearch(container.string().size(), item.string().size()));
      return container.string().find(item.string()) != std::string::npos;
    case Kind::kDict:
      KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(container.pairs().size())));
      if (!item.is(Kind::kString)) return false;
      KVBLEND_RETURN_IF_ERROR(CheckFind(container, item.string(), budget));
      return container.Find(item.string()) != nullptr;
    case Kind::kList:
      for (const Value& candidate : container.items()) {
        KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(candidate, item, budget));
        if (equal) return true;
      }
      return false;
    case Kind::kUndefined:
      return false;
    default:
      return NotForOperands("in", item, container);
  }
}

absl::StatusOr<bool> Compared(std::string_view comparison, const Value& a, const Value& b, Budget* budget) {
  if (comparison == "in" || comparison == "not in") {
    KVBLEND_ASSIGN_OR_RETURN(const bool contains, Contains(b, a, budget));
    return contains == (comparison == "in");
  }
  if (comparison == "==" || comparison == "!=") {
    KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(a, b, budget));
    return equal == (comparison == "==");
  }
  KVBLEND_ASSIGN_OR_RETURN(const int order, Compare(a, b, budget));
  if (comparison == "<") return order < 0;
  if (comparison == "<=") return order <= 0;
  return comparison == ">" ? order > 0 : order >= 0;
}

absl::StatusOr<Value> Attribute(const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return IsUndefined(value);
  if (const Value* found = value.Find(name)) return *found;
  return Value::Undefined(Message("the attribute '", name.substr(0, 60), "' of a ", value.KindName()));
}

absl::StatusOr<Value> Item(const Value& value, const Value& index, Budget* budget) {
  if (value.is(Kind::kUndefined)) return IsUndefined(value);
  if (index.is(Kind::kString)) {
    KVBLEND_RETURN_IF_ERROR(CheckFind(value, index.string(), budget));
    if (const Value* found = value.Find(index.string())) return *found;
    return Value::Undefined(
        Message("the entry '", index.string().substr(0, 60), "' of a ", value.KindName()));
  }
  const bool counts = index.is(Kind::kInteger) || index.is(Kind::kBool);
  const auto missing = [&] {
    const std::string which = counts ? Message(index.integer()) : std::string(index.KindName());
    return Value::Undefined(Message("the entry [", which, "] of a ", value.KindName()));
  };
  if (!counts) return missing();
  int64_t at = index.integer();
  if (value.is(Kind::kList)) {
    const auto size = static_cast<int64_t>(value.items().size());
    if (at < 0) at += size;
    return at < 0 || at >= size ? missing() : value.items()[static_cast<size_t>(at)];
  }
  if (value.is(Kind::kString)) {
    const std::string& text = value.string();
    KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(text.size() / 64)));
    const std::vector<size_t> offsets = CharacterOffsets(text);
    const auto size = static_cast<int64_t>(offsets.size()) - 1;
    if (at < 0) at += size;
    if (at < 0 || at >= size) return missing();
    const auto character = static_cast<size_t>(at);
    return Value::String(text.substr(offsets[character], offsets[character + 1] - offsets[character]));
  }
  return missing();
}

absl::StatusOr<Value> Slice(const Value& value, const Value& from, const Value& to, const Value& step,
                            Budget* budget) {
  if (value.is(Kind::kUndefined)) return IsUndefined(value);
  if (!value.is(Kind::kString) && !value.is(Kind::kList)) {
    return absl::InvalidArgumentError(Message("a value of type ", value.KindName(), " has no slices"));
  }
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(value, budget));
  KVBLEND_ASSIGN_OR_RETURN(const SliceRange range,
                           RangeOf(from, to, step, static_cast<int64_t>(items.size())));
  Items chosen;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    chosen.push_back(items[static_cast<size_t>(i)]);
  }
  if (value.is(Kind::kList)) return MakeList(std::move(chosen), budget);
  std::string text;
  for (const Value& character : chosen) text += character.string();
  return MakeString(std::move(text), budget);
}

}  // namespace kvblend::text::jinja
