// Tests: {{ value is name(arguments) }}, as Jinja has them.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/operations.h"

namespace kvblend::text::jinja {
namespace {

using PlainTest = bool (*)(const Value& value);

bool IsIterable(const Value& value) {
  return value.is(Kind::kList) || value.is(Kind::kDict) || value.is(Kind::kString) ||
         value.is(Kind::kUndefined);
}

const absl::flat_hash_map<std::string_view, PlainTest>& PlainTests() {
  static const auto& table = *new absl::flat_hash_map<std::string_view, PlainTest>{
      {"defined", [](const Value& value) { return !value.is(Kind::kUndefined); }},
      {"undefined", [](const Value& value) { return value.is(Kind::kUndefined); }},
      {"none", [](const Value& value) { return value.is(Kind::kNone); }},
      {"boolean", [](const Value& value) { return value.is(Kind::kBool); }},
      {"true", [](const Value& value) { return value.is(Kind::kBool) && value.boolean(); }},
      {"false", [](const Value& value) { return value.is(Kind::kBool) && !value.boolean(); }},
      {"integer", [](const Value& value) { return value.is(Kind::kInteger); }},
      {"float", [](const Value& value) { return value.is(Kind::kFloat); }},
      {"number", [](const Value& value) { return value.is_number(); }},
      {"string", [](const Value& value) { return value.is(Kind::kString); }},
      {"mapping", [](const Value& value) { return value.is(Kind::kDict); }},
      {"sequence", IsIterable},
      {"iterable", IsIterable},
      {"callable", [](const Value& value) { return value.is(Kind::kFunction); }},
      {"odd",
       [](const Value& value) { return value.is_number() && std::abs(std::fmod(value.number(), 2)) == 1; }},
      {"even", [](const Value& value) { return value.is_number() && std::fmod(value.number(), 2) == 0; }},
  };
  return table;
}

std::string_view ComparisonOf(std::string_view test) {
  static const auto& table = *new absl::flat_hash_map<std::string_view, std::string_view>{
      {"eq", "=="},         {"equalto", "=="}, {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"},
      {"lessthan", "<"},    {"<", "<"},        {"le", "<="}, {"<=", "<="}, {"gt", ">"},  {">", ">"},
      {"greaterthan", ">"}, {"ge", ">="},      {">=", ">="}, {"in", "in"},
  };
  const auto found = table.find(test);
  return found == table.end() ? std::string_view() : found->second;
}

}  // namespace

absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& value, const CallValues& arguments,
                               Budget* budget) {
  if (const auto found = PlainTests().find(name); found != PlainTests().end()) {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 0, {}));
    return found->second(value);
  }
  if (name == "lower" || name == "upper") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 0, {}));
    if (!value.is(Kind::kString)) return false;
    KVBLEND_RETURN_IF_ERROR(budget->Spend(static_cast<int64_t>(value.string().size() / 256)));
    return std::ranges::none_of(value.string(), name == "lower" ? absl::ascii_isupper : absl::ascii_islower);
  }
  if (const std::string_view comparison = ComparisonOf(name); !comparison.empty()) {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"other"}));
    return Compared(comparison, value, *arguments.Get(0, "other"), budget);
  }
  if (name == "divisibleby") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"num"}));
    KVBLEND_ASSIGN_OR_RETURN(const Value rest, Binary("%", value, *arguments.Get(0, "num"), budget));
    return rest.is_number() && rest.number() == 0;
  }
  if (name == "sameas") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"other"}));
    const Value& other = *arguments.Get(0, "other");
    if (value.kind() != other.kind()) return false;
    return Equal(value, other, budget);
  }
  return absl::UnimplementedError(Message("the test '", name.substr(0, 60), "' is not implemented"));
}

}  // namespace kvblend::text::jinja
