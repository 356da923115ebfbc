// Filters of lists, as Jinja has them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "engine/text/jinja/filters.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text::jinja {
namespace {

// "a.b.0" of an item, for filters that take an attribute's name.
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

// Filters that go through items one by one take all that is not true for an empty list.
absl::StatusOr<Items> IterateIfAny(const Value& value, Budget* budget) {
  if (!value.Truth()) return Items();
  return Iterate(value, budget);
}

// A text without its case; other values as they are.
absl::StatusOr<Value> Folded(const Value& value, Budget* budget) {
  if (!value.is(Kind::kString)) return value;
  KVBLEND_RETURN_IF_ERROR(budget->CheckString(value.string().size()));
  return Value::String(Lower(value.string()));
}

// Pays before a text of so many bytes is sorted: among kMaxListItems it is compared with kComparisons.
absl::Status CheckSorting(size_t bytes, Budget* budget) {
  constexpr size_t kComparisons = 16;
  static_assert(size_t{1} << kComparisons >= kMaxListItems);
  return budget->Spend(static_cast<int64_t>(kComparisons + kComparisons * bytes / 256));
}

}  // namespace

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
  // map of map could nest without an end.
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

absl::StatusOr<Value> Unique(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {"case_sensitive"}));
  const bool exact = call.arguments.Truth(0, "case_sensitive", false);
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(call.input, call.budget));
  Items kept, keys;
  for (const Value& item : items) {
    Value key = item;
    if (!exact) {
      KVBLEND_ASSIGN_OR_RETURN(key, Folded(item, call.budget));
    }
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
    KVBLEND_RETURN_IF_ERROR(CheckSorting(key.is(Kind::kString) ? key.string().size() : 0, call.budget));
    if (!exact) {
      KVBLEND_ASSIGN_OR_RETURN(key, Folded(key, call.budget));
    }
    // A strict order needs items of one kind; NaN has none.
    const bool first_kind =
        keys.empty() || (key.is_number() && keys[0].first.is_number()) || key.kind() == keys[0].first.kind();
    if (!first_kind || (!key.is_number() && !key.is(Kind::kString)) ||
        (key.is_number() && std::isnan(key.number()))) {
      return absl::InvalidArgumentError(Message(call.name, ": the items have no order"));
    }
    keys.emplace_back(std::move(key), keys.size());
  }
  Budget unlimited({.steps = std::numeric_limits<int64_t>::max()});  // sorting was paid for key by key
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

absl::StatusOr<Value> DictSort(const FilterCall& call) {
  KVBLEND_RETURN_IF_ERROR(call.Check(0, {}));
  if (!call.input.is(Kind::kDict)) return absl::InvalidArgumentError("dictsort: the value is no dict");
  Pairs pairs = call.input.pairs();
  for (const auto& [key, value] : pairs) {
    KVBLEND_RETURN_IF_ERROR(CheckSorting(key.size(), call.budget));
  }
  const auto before = [](char a, char b) {
    return static_cast<unsigned char>(absl::ascii_tolower(static_cast<unsigned char>(a))) <
           static_cast<unsigned char>(absl::ascii_tolower(static_cast<unsigned char>(b)));
  };
  std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) {
    return std::ranges::lexicographical_compare(a.first, b.first, before);
  });
  KVBLEND_ASSIGN_OR_RETURN(const Value sorted, Value::Dict(std::move(pairs)));
  return CallMethod(sorted, "items", {}, call.budget);
}

}  // namespace kvblend::text::jinja
