// What expressions do with values. Pure functions but for the budget. Errors have no line yet:
// kInvalidArgument for what Python would raise, kUnimplemented for names that are not known,
// kResourceExhausted beyond the budget.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/call_values.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {

using Kind = Value::Kind;

/// What a loop over the value sees: items, characters, keys; nothing for undefined.
absl::StatusOr<Items> Iterate(const Value& value, Budget* budget);

/// `name` is of an arithmetic operator or "~".
absl::StatusOr<Value> Binary(std::string_view name, const Value& a, const Value& b, Budget* budget);
/// `name` is "-" or "+".
absl::StatusOr<Value> Negated(std::string_view name, const Value& value);
/// item in container
absl::StatusOr<bool> Contains(const Value& container, const Value& item, Budget* budget);
/// "==", "<", "in", "not in", ...
absl::StatusOr<bool> Compared(std::string_view comparison, const Value& a, const Value& b, Budget* budget);

/// value.name and value[index]; undefined where there is nothing.
absl::StatusOr<Value> Attribute(const Value& value, std::string_view name);
absl::StatusOr<Value> Item(const Value& value, const Value& index, Budget* budget);
/// value[from:to:step]; none stands for what is left out.
absl::StatusOr<Value> Slice(const Value& value, const Value& from, const Value& to, const Value& step,
                            Budget* budget);

absl::StatusOr<Value> CallMethod(const Value& object, std::string_view name, const CallValues& arguments,
                                 Budget* budget);
absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& input, const CallValues& arguments,
                                  Budget* budget);
absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& value, const CallValues& arguments,
                               Budget* budget);

/// Makes values within the budget.
absl::StatusOr<Value> MakeString(std::string text, Budget* budget);
absl::StatusOr<Value> MakeList(Items items, Budget* budget);

}  // namespace kvblend::text::jinja
