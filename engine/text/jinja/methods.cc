// Methods of strings, dicts and lists, as Python has them.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text::jinja {
namespace {

absl::Status NoSuchMethod(const Value& object, std::string_view name) {
  return absl::UnimplementedError(
      Message("the method '", name.substr(0, 60), "' of a ", object.KindName(), " is not implemented"));
}

absl::StatusOr<Value> ListOf(std::vector<std::string> texts, Budget* budget) {
  Items items;
  for (std::string& text : texts) items.push_back(Value::String(std::move(text)));
  return MakeList(std::move(items), budget);
}

absl::StatusOr<int64_t> Limit(const CallValues& arguments, std::string_view what, size_t index,
                              std::string_view name) {
  KVBLEND_ASSIGN_OR_RETURN(const Value* limit, arguments.GetOf(Kind::kInteger, what, index, name));
  return limit == nullptr ? -1 : limit->integer();
}

absl::StatusOr<Value> Split(const std::string& text, bool from_right, const CallValues& arguments,
                            Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(arguments.Check("split", 0, {"sep", "maxsplit"}));
  KVBLEND_ASSIGN_OR_RETURN(const int64_t limit, Limit(arguments, "split", 1, "maxsplit"));
  const Value* given = arguments.Get(0, "sep");
  if (given == nullptr || given->is(Kind::kNone)) {
    if (from_right && limit >= 0) return absl::UnimplementedError("rsplit needs a separator");
    KVBLEND_RETURN_IF_ERROR(budget->CheckList(text.size() / 2 + 1));
    return ListOf(SplitAtSpace(text, limit), budget);
  }
  KVBLEND_ASSIGN_OR_RETURN(const Value* separator, arguments.GetOf(Kind::kString, "split", 0, "sep"));
  if (separator->string().empty()) return absl::InvalidArgumentError("split: the separator is empty");
  KVBLEND_RETURN_IF_ERROR(budget->CheckSearch(text.size(), separator->string().size()));
  KVBLEND_RETURN_IF_ERROR(budget->Allocate(64 * (text.size() / separator->string().size() + 1) / 8));
  return ListOf(from_right ? SplitAtFromRight(text, separator->string(), limit)
                           : SplitAt(text, separator->string(), limit),
                budget);
}

// startswith and endswith take one text or several.
absl::StatusOr<Value> HasAffix(const std::string& text, bool at_end, const CallValues& arguments,
                               Budget* budget) {
  const char* what = at_end ? "endswith" : "startswith";
  KVBLEND_RETURN_IF_ERROR(arguments.Check(what, 1, {"prefix"}));
  const Value* given = arguments.Get(0, "prefix");
  const Items one = {*given};
  const Items& affixes = given->is(Kind::kList) ? given->items() : one;
  bool found = false;
  for (const Value& affix : affixes) {
    if (!affix.is(Kind::kString)) {
      return absl::InvalidArgumentError(Message(what, " has an argument of type ", affix.KindName()));
    }
    KVBLEND_RETURN_IF_ERROR(budget->Spend(1));
    KVBLEND_RETURN_IF_ERROR(budget->CheckScan(affix.string().size()));
    found |= at_end ? text.ends_with(affix.string()) : text.starts_with(affix.string());
  }
  return Value::Bool(found);
}

absl::StatusOr<Value> Stripped(const std::string& text, bool left, bool right, const CallValues& arguments,
                               Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(arguments.Check("strip", 0, {"chars"}));
  std::string_view rest = text;
  const Value* set = arguments.Get(0, "chars");
  if (set == nullptr || set->is(Kind::kNone)) {
    if (left) rest = StripLeft(rest);
    if (right) rest = StripRight(rest);
  } else {
    KVBLEND_ASSIGN_OR_RETURN(set, arguments.GetOf(Kind::kString, "strip", 0, "chars"));
    KVBLEND_RETURN_IF_ERROR(budget->CheckSearch(text.size(), set->string().size()));
    if (left) rest = StripLeft(rest, set->string());
    if (right) rest = StripRight(rest, set->string());
  }
  return MakeString(std::string(rest), budget);
}

absl::StatusOr<Value> ReplacedIn(const std::string& text, const CallValues& arguments, Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(arguments.Check("replace", 2, {"old", "new", "count"}));
  KVBLEND_ASSIGN_OR_RETURN(const Value* from, arguments.GetOf(Kind::kString, "replace", 0, "old"));
  KVBLEND_ASSIGN_OR_RETURN(const Value* to, arguments.GetOf(Kind::kString, "replace", 1, "new"));
  const Value* count = arguments.Get(2, "count");
  int64_t limit = -1;
  if (count != nullptr && !count->is(Kind::kNone)) {
    KVBLEND_ASSIGN_OR_RETURN(limit, Limit(arguments, "replace", 2, "count"));
  }
  KVBLEND_RETURN_IF_ERROR(budget->CheckSearch(text.size(), from->string().size()));
  // At most so many places, each of which grows by the new text.
  const size_t places = text.size() / std::max<size_t>(from->string().size(), 1) + 1;
  size_t growth =
      to->string().size() > from->string().size() ? to->string().size() - from->string().size() : 0;
  if (growth > 0 && text.size() + places * growth > kMaxStringBytes) {
    size_t found = 0;  // so many there are
    for (size_t at = text.find(from->string()); at != std::string::npos && at < text.size();
         at = text.find(from->string(), at + std::max<size_t>(from->string().size(), 1))) {
      ++found;
    }
    growth *= found + 1;
    if (text.size() + growth > kMaxStringBytes) return budget->CheckString(text.size() + growth);
  }
  return MakeString(Replaced(text, from->string(), to->string(), limit), budget);
}

absl::StatusOr<Value> FoundIn(const std::string& text, std::string_view name, const CallValues& arguments,
                              Budget* budget) {
  KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"sub"}));
  KVBLEND_ASSIGN_OR_RETURN(const Value* part, arguments.GetOf(Kind::kString, name, 0, "sub"));
  KVBLEND_RETURN_IF_ERROR(budget->CheckSearch(text.size(), part->string().size()));
  if (name == "count") {
    int64_t count = 0;
    const size_t step = std::max<size_t>(part->string().size(), 1);
    for (size_t at = text.find(part->string()); at != std::string::npos;
         at = text.find(part->string(), at + step)) {
      if (!part->string().empty() || at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80)
        ++count;
    }
    return Value::Integer(count);
  }
  const bool from_right = name == "rfind" || name == "rindex";
  const size_t at = from_right ? text.rfind(part->string()) : text.find(part->string());
  if (at != std::string::npos) return Value::Integer(Length(std::string_view(text).substr(0, at)));
  if (name == "find" || name == "rfind") return Value::Integer(-1);
  return absl::InvalidArgumentError(Message(name, ": the text is not in the string"));
}

absl::StatusOr<Value> CallOfString(const Value& object, std::string_view name, const CallValues& arguments,
                                   Budget* budget) {
  const std::string& text = object.string();
  KVBLEND_RETURN_IF_ERROR(budget->CheckScan(text.size()));
  if (name == "split" || name == "rsplit") return Split(text, name == "rsplit", arguments, budget);
  if (name == "strip") return Stripped(text, true, true, arguments, budget);
  if (name == "lstrip") return Stripped(text, true, false, arguments, budget);
  if (name == "rstrip") return Stripped(text, false, true, arguments, budget);
  if (name == "startswith" || name == "endswith") {
    return HasAffix(text, name == "endswith", arguments, budget);
  }
  if (name == "replace") return ReplacedIn(text, arguments, budget);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return FoundIn(text, name, arguments, budget);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"affix"}));
    KVBLEND_ASSIGN_OR_RETURN(const Value* affix, arguments.GetOf(Kind::kString, name, 0, "affix"));
    const size_t size = affix->string().size();
    if (name == "removeprefix" && text.starts_with(affix->string()))
      return MakeString(text.substr(size), budget);
    if (name == "removesuffix" && text.ends_with(affix->string())) {
      return MakeString(text.substr(0, text.size() - size), budget);
    }
    return object;
  }
  if (name == "join") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"iterable"}));
    CallValues separator;
    separator.positional.push_back(object);
    return ApplyFilter("join", *arguments.Get(0, "iterable"), separator, budget);
  }
  std::optional<std::string> changed;
  if (name == "upper") changed = Upper(text);
  if (name == "lower") changed = Lower(text);
  if (name == "title") changed = Titled(text);
  if (name == "capitalize") changed = Capitalized(text);
  std::optional<bool> answer;
  const auto all = [&](auto belongs) {
    return !text.empty() && std::all_of(text.begin(), text.end(), belongs);
  };
  const auto has = [&](auto belongs) { return std::any_of(text.begin(), text.end(), belongs); };
  if (name == "isdigit") answer = all(absl::ascii_isdigit);
  if (name == "isalpha") answer = all(absl::ascii_isalpha);
  if (name == "isalnum") answer = all(absl::ascii_isalnum);
  if (name == "isspace") answer = !text.empty() && Strip(text).empty();
  if (name == "isupper") answer = has(absl::ascii_isupper) && !has(absl::ascii_islower);
  if (name == "islower") answer = has(absl::ascii_islower) && !has(absl::ascii_isupper);
  if (!changed && !answer && name != "splitlines") return NoSuchMethod(object, name);
  KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 0, {}));
  if (changed) return MakeString(*std::move(changed), budget);
  if (answer) return Value::Bool(*answer);
  KVBLEND_RETURN_IF_ERROR(budget->CheckList(text.size() / 8));
  return ListOf(SplitLines(text), budget);
}

absl::StatusOr<Value> CallOfDict(const Value& object, std::string_view name, const CallValues& arguments,
                                 Budget* budget) {
  if (name == "get") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"key", "default"}));
    const Value* key = arguments.Get(0, "key");
    const Value* found = nullptr;
    if (key->is(Kind::kString)) {
      KVBLEND_RETURN_IF_ERROR(CheckFind(object, key->string(), budget));
      found = object.Find(key->string());
    }
    if (found != nullptr) return *found;
    const Value* otherwise = arguments.Get(1, "default");
    return otherwise == nullptr ? Value::None() : *otherwise;
  }
  // {{ loop.cycle("a", "b") }}
  if (const Value* index = object.Find("index0");
      name == "cycle" && index != nullptr && index->is(Kind::kInteger)) {
    if (arguments.positional.empty()) return absl::InvalidArgumentError("cycle has nothing to choose from");
    return arguments.positional[static_cast<size_t>(index->integer()) % arguments.positional.size()];
  }
  if (name != "items" && name != "keys" && name != "values") return NoSuchMethod(object, name);
  KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 0, {}));
  if (name != "values") KVBLEND_RETURN_IF_ERROR(CheckKeys(object.pairs(), budget));
  Items items;
  for (const auto& [key, value] : object.pairs()) {
    if (name == "values") {
      items.push_back(value);
    } else if (name == "keys") {
      items.push_back(Value::String(key));
    } else {
      KVBLEND_ASSIGN_OR_RETURN(Value pair, MakeList({Value::String(key), value}, budget));
      items.push_back(std::move(pair));
    }
  }
  return MakeList(std::move(items), budget);
}

absl::StatusOr<Value> CallOfList(const Value& object, std::string_view name, const CallValues& arguments,
                                 Budget* budget) {
  if (name == "append" || name == "extend" || name == "insert" || name == "pop" || name == "remove" ||
      name == "clear" || name == "sort" || name == "reverse") {
    return absl::InvalidArgumentError(Message("'", name, "' would change a list, which templates may not"));
  }
  if (name != "index" && name != "count") return NoSuchMethod(object, name);
  KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"value"}));
  int64_t count = 0;
  for (size_t i = 0; i < object.items().size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(const bool equal, Equal(object.items()[i], *arguments.Get(0, "value"), budget));
    if (equal && name == "index") return Value::Integer(static_cast<int64_t>(i));
    count += equal ? 1 : 0;
  }
  if (name == "index") return absl::InvalidArgumentError("index: the value is not in the list");
  return Value::Integer(count);
}

}  // namespace

absl::StatusOr<Value> CallMethod(const Value& object, std::string_view name, const CallValues& arguments,
                                 Budget* budget) {
  switch (object.kind()) {
    case Kind::kString:
      return CallOfString(object, name, arguments, budget);
    case Kind::kDict:
      return CallOfDict(object, name, arguments, budget);
    case Kind::kList:
      return CallOfList(object, name, arguments, budget);
    case Kind::kUndefined:
      return absl::InvalidArgumentError(Message(object.undefined_name(), " is undefined"));
    default:
      return NoSuchMethod(object, name);
  }
}

}  // namespace kvblend::text::jinja
