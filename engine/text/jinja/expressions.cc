// The values of expressions.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/operations.h"

namespace kvblend::text::jinja {
Value Interpreter::Lookup(const std::string& name) const {
  for (size_t i = scopes_.size(); i > std::max<size_t>(scope_base_, 1); --i) {
    const auto found = scopes_[i - 1].find(name);
    if (found != scopes_[i - 1].end()) return found->second;
  }
  const auto found = scopes_[0].find(name);
  return found != scopes_[0].end() ? found->second : Value::Undefined(Message("'", name.substr(0, 60), "'"));
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression) {
  if (depth_ >= kMaxRunningDepth) {
    return AtLine(
        expression.line,
        absl::ResourceExhaustedError(
            Message("expressions and macros are nested too deeply; allowed: ", kMaxRunningDepth, " levels")));
  }
  ++depth_;
  absl::StatusOr<Value> value = EvaluateAtDepth(expression);
  --depth_;
  if (!value.ok()) return AtLine(expression.line, value.status());
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateAtDepth(const Expression& expression) {
  KVBLEND_RETURN_IF_ERROR(budget_.Spend(1));
  switch (expression.kind) {
    case Expression::Kind::kLiteral:
      return expression.value;
    case Expression::Kind::kName:
      return Lookup(expression.name);
    case Expression::Kind::kList: {
      Items items;
      for (const ExpressionPtr& operand : expression.operands) {
        KVBLEND_ASSIGN_OR_RETURN(Value item, Evaluate(*operand));
        items.push_back(std::move(item));
      }
      return MakeList(std::move(items), &budget_);
    }
    case Expression::Kind::kDict:
      return EvaluateDict(expression);
    case Expression::Kind::kUnary: {
      KVBLEND_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
      if (expression.name == "not") return Value::Bool(!value.Truth());
      return Negated(expression.name, value);
    }
    case Expression::Kind::kBinary:
      return EvaluateBinary(expression);
    case Expression::Kind::kCompare:
      return EvaluateCompare(expression);
    case Expression::Kind::kCondition: {
      KVBLEND_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.operands[1]));
      if (condition.Truth()) return Evaluate(*expression.operands[0]);
      if (expression.operands.size() < 3) return Value::Undefined("the value of an 'if' without 'else'");
      return Evaluate(*expression.operands[2]);
    }
    case Expression::Kind::kAttribute: {
      KVBLEND_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      return Attribute(object, expression.name);
    }
    case Expression::Kind::kItem: {
      KVBLEND_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
      KVBLEND_ASSIGN_OR_RETURN(const Value index, Evaluate(*expression.operands[1]));
      return Item(object, index, &budget_);
    }
    case Expression::Kind::kSlice:
      return EvaluateSlice(expression);
    case Expression::Kind::kCall:
      return EvaluateCall(expression);
    case Expression::Kind::kFilter: {
      KVBLEND_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
      KVBLEND_ASSIGN_OR_RETURN(const CallValues arguments, EvaluateArguments(expression.arguments));
      return ApplyFilter(expression.name, input, arguments, &budget_);
    }
    case Expression::Kind::kTest: {
      KVBLEND_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.operands[0]));
      KVBLEND_ASSIGN_OR_RETURN(const CallValues arguments, EvaluateArguments(expression.arguments));
      KVBLEND_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expression.name, value, arguments, &budget_));
      return Value::Bool(holds != expression.negated);
    }
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateBinary(const Expression& expression) {
  KVBLEND_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.operands[0]));
  if (expression.name == "and" || expression.name == "or") {
    if (left.Truth() == (expression.name == "or")) return left;
    return Evaluate(*expression.operands[1]);
  }
  KVBLEND_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.operands[1]));
  return Binary(expression.name, left, right, &budget_);
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& expression) {
  KVBLEND_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    KVBLEND_ASSIGN_OR_RETURN(const bool holds, Compared(expression.comparisons[i], left, right, &budget_));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expression& expression) {
  Pairs pairs;
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    KVBLEND_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i]));
    KVBLEND_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    if (!key.is(Value::Kind::kString)) {
      return absl::UnimplementedError(
          Message("a dict has a key of type ", key.KindName(), "; allowed: string"));
    }
    KVBLEND_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(pairs.size())));
    const auto known = std::find_if(pairs.begin(), pairs.end(),
                                    [&](const auto& pair) { return pair.first == key.string(); });
    if (known != pairs.end()) {
      known->second = std::move(value);
    } else {
      pairs.emplace_back(key.string(), std::move(value));
    }
  }
  KVBLEND_RETURN_IF_ERROR(budget_.CheckList(pairs.size()));
  KVBLEND_RETURN_IF_ERROR(CheckKeys(pairs, &budget_));
  return Value::Dict(std::move(pairs));
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expression& expression) {
  KVBLEND_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.operands[0]));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    bounds[i] = Value::None();
    if (expression.operands[i + 1] == nullptr) continue;
    KVBLEND_ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.operands[i + 1]));
  }
  return Slice(object, bounds[0], bounds[1], bounds[2], &budget_);
}

absl::StatusOr<CallValues> Interpreter::EvaluateArguments(const Arguments& arguments) {
  CallValues values;
  for (const ExpressionPtr& argument : arguments.positional) {
    KVBLEND_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : arguments.named) {
    KVBLEND_ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    values.named.emplace_back(name, std::move(value));
  }
  return values;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == Expression::Kind::kAttribute) {
    KVBLEND_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.operands[0]));
    const Value* found = object.Find(callee.name);
    if (found == nullptr || !found->is(Value::Kind::kFunction)) {
      KVBLEND_ASSIGN_OR_RETURN(const CallValues arguments, EvaluateArguments(expression.arguments));
      return CallMethod(object, callee.name, arguments, &budget_);
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  if (!function.is(Value::Kind::kFunction)) {
    if (function.is(Value::Kind::kUndefined)) {
      return absl::InvalidArgumentError(
          Message(function.undefined_name(), " is undefined, so it cannot be called"));
    }
    return absl::InvalidArgumentError(Message("a value of type ", function.KindName(), " cannot be called"));
  }
  KVBLEND_ASSIGN_OR_RETURN(CallValues arguments, EvaluateArguments(expression.arguments));
  if (const Statement* macro = function.function().macro) return CallMacro(*macro, std::move(arguments));
  return CallBuiltIn(function.function().name, arguments);
}

absl::StatusOr<Value> Interpreter::CallBuiltIn(const std::string& name, const CallValues& arguments) {
  if (name == "raise_exception") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"message"}));
    KVBLEND_ASSIGN_OR_RETURN(const std::string message, ToText(*arguments.Get(0, "message"), &budget_));
    return absl::FailedPreconditionError(Message("the template refuses: ", message.substr(0, 500)));
  }
  if (name == "strftime_now") return FormatTime(arguments);
  if (name == "range") {
    KVBLEND_RETURN_IF_ERROR(arguments.Check(name, 1, {"start", "stop", "step"}));
    int64_t bounds[3] = {0, 0, 1};
    const size_t count = arguments.positional.size();
    for (size_t i = 0; i < count; ++i) {
      const Value& bound = arguments.positional[i];
      if (!bound.is(Value::Kind::kInteger)) {
        return absl::InvalidArgumentError(Message("range has an argument of type ", bound.KindName()));
      }
      bounds[count == 1 ? 1 : i] = bound.integer();
    }
    constexpr int64_t kFar = int64_t{1} << 32;
    if (bounds[2] == 0) return absl::InvalidArgumentError("range has step 0");
    if (std::any_of(std::begin(bounds), std::end(bounds), [](int64_t b) { return b < -kFar || b > kFar; })) {
      return absl::ResourceExhaustedError("range has an argument beyond 4294967296");
    }
    const int64_t distance = bounds[2] > 0 ? bounds[1] - bounds[0] : bounds[0] - bounds[1];
    const int64_t step = std::abs(bounds[2]);
    const int64_t size = distance <= 0 ? 0 : (distance + step - 1) / step;
    KVBLEND_RETURN_IF_ERROR(budget_.CheckList(static_cast<size_t>(size)));
    Items items;
    for (int64_t i = 0; i < size; ++i) items.push_back(Value::Integer(bounds[0] + i * bounds[2]));
    return Value::List(std::move(items));
  }
  // namespace and dict take named arguments, behind the entries of a dict if one is given.
  if (arguments.positional.size() > 1)
    return absl::InvalidArgumentError(Message(name, " takes one dict at most"));
  Pairs pairs;
  if (!arguments.positional.empty()) {
    const Value& first = arguments.positional[0];
    if (!first.is(Value::Kind::kDict)) return absl::InvalidArgumentError(Message(name, " takes a dict"));
    pairs = first.pairs();
  }
  for (const auto& [key, value] : arguments.named) {
    KVBLEND_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(pairs.size())));
    const auto known = std::find_if(pairs.begin(), pairs.end(),
                                    [&key = key](const auto& pair) { return pair.first == key; });
    if (known != pairs.end()) {
      known->second = value;
    } else {
      pairs.emplace_back(key, value);
    }
  }
  KVBLEND_RETURN_IF_ERROR(budget_.CheckList(pairs.size()));
  KVBLEND_RETURN_IF_ERROR(CheckKeys(pairs, &budget_));
  KVBLEND_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(pairs.size() * pairs.size() / 16)));
  return name == "namespace" ? Value::Namespace(std::move(pairs)) : Value::Dict(std::move(pairs));
}

absl::StatusOr<Value> Interpreter::FormatTime(const CallValues& arguments) const {
  KVBLEND_RETURN_IF_ERROR(arguments.Check("strftime_now", 1, {"format"}));
  KVBLEND_ASSIGN_OR_RETURN(const Value* format,
                           arguments.GetOf(Value::Kind::kString, "strftime_now", 0, "format"));
  constexpr size_t kMaxFormat = 200;
  if (format->string().size() > kMaxFormat) {
    return absl::InvalidArgumentError(Message("strftime_now has a format of ", format->string().size(),
                                              " bytes; allowed: up to ", kMaxFormat));
  }
  return Value::String(absl::FormatTime(format->string(), environment_.now, environment_.time_zone));
}

}  // namespace kvblend::text::jinja
