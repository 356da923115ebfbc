#include "engine/text/jinja/interpreter.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/operations.h"

namespace kvblend::text::jinja {
namespace {

constexpr char kLinePrefix[] = "line ";

}  // namespace

absl::Status AtLine(int line, const absl::Status& status) {
  if (status.ok() || status.message().substr(0, sizeof(kLinePrefix) - 1) == kLinePrefix) return status;
  return absl::Status(status.code(), Message(kLinePrefix, line, ": ", status.message()));
}

Interpreter::Interpreter(const Environment& environment)
    : environment_(environment), budget_(environment.limits) {
  Scope& scope = scopes_.emplace_back();
  for (const char* name : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
    scope[name] = Value::Of({.name = name});
  }
  for (const auto& [name, value] : environment.variables) scope.insert_or_assign(name, value);
}

absl::StatusOr<std::string> Interpreter::Run(const Block& block) {
  std::string output;
  output_ = &output;
  KVBLEND_RETURN_IF_ERROR(RunBlock(block).status());
  return output;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBlock(const Block& block) {
  if (depth_ >= kMaxRunningDepth) {
    return absl::ResourceExhaustedError(
        Message("blocks and macros are nested too deeply; allowed: ", kMaxRunningDepth, " levels"));
  }
  ++depth_;
  absl::StatusOr<Flow> flow = Flow::kOn;
  for (const std::unique_ptr<Statement>& statement : block) {
    flow = RunStatement(*statement);
    if (!flow.ok()) flow = AtLine(statement->line, flow.status());
    if (!flow.ok() || *flow != Flow::kOn) break;
  }
  --depth_;
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Statement& statement) {
  KVBLEND_RETURN_IF_ERROR(budget_.Spend(1));
  switch (statement.kind) {
    case Statement::Kind::kText:
      KVBLEND_RETURN_IF_ERROR(Write(Value::String(statement.text)));
      return Flow::kOn;
    case Statement::Kind::kOutput: {
      KVBLEND_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      KVBLEND_RETURN_IF_ERROR(Write(value));
      return Flow::kOn;
    }
    case Statement::Kind::kFor:
      return RunFor(statement);
    case Statement::Kind::kIf:
      return RunIf(statement);
    case Statement::Kind::kSet:
      KVBLEND_RETURN_IF_ERROR(RunSet(statement));
      return Flow::kOn;
    case Statement::Kind::kMacro:
      scopes_.back().insert_or_assign(statement.text,
                                      Value::Of({.name = statement.text, .macro = &statement}));
      return Flow::kOn;
    case Statement::Kind::kScope: {
      scopes_.emplace_back();
      absl::StatusOr<Flow> flow = RunBlock(statement.body);
      scopes_.pop_back();
      return flow;
    }
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

absl::Status Interpreter::Write(const Value& value) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string text, ToText(value, &budget_));
  if (output_->size() + text.size() > environment_.limits.output_bytes) {
    return absl::ResourceExhaustedError(
        Message("the output is too long; allowed: ", environment_.limits.output_bytes, " bytes"));
  }
  *output_ += text;
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Statement& choice) {
  for (const Statement::Branch& branch : choice.branches) {
    KVBLEND_ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch.condition));
    if (condition.Truth()) return RunBlock(branch.body);
  }
  return RunBlock(choice.otherwise);
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& loop) {
  KVBLEND_ASSIGN_OR_RETURN(const Value over, Evaluate(*loop.expression));
  KVBLEND_ASSIGN_OR_RETURN(Items items, Iterate(over, &budget_));
  const size_t scope = scopes_.size();
  scopes_.emplace_back();
  // Whatever is returned, the scope goes.
  const auto run = [&]() -> absl::StatusOr<Flow> {
    if (loop.condition != nullptr) {
      Items chosen;
      for (Value& item : items) {
        scopes_[scope].clear();
        KVBLEND_RETURN_IF_ERROR(Assign(loop.targets, item));
        KVBLEND_ASSIGN_OR_RETURN(const Value condition, Evaluate(*loop.condition));
        if (condition.Truth()) chosen.push_back(std::move(item));
      }
      items = std::move(chosen);
    }
    const auto size = static_cast<int64_t>(items.size());
    bool any_ended =
        false;  // as Jinja has it, what stands behind else is for loops that no item went through
    for (int64_t i = 0; i < size; ++i) {
      KVBLEND_RETURN_IF_ERROR(budget_.Spend(2));
      const auto neighbour = [&](int64_t at) {
        return at < 0 || at >= size ? Value::Undefined("there is no such item; it")
                                    : items[static_cast<size_t>(at)];
      };
      scopes_[scope].clear();
      KVBLEND_ASSIGN_OR_RETURN(Value about, Value::Dict({{"index", Value::Integer(i + 1)},
                                                         {"index0", Value::Integer(i)},
                                                         {"revindex", Value::Integer(size - i)},
                                                         {"revindex0", Value::Integer(size - i - 1)},
                                                         {"first", Value::Bool(i == 0)},
                                                         {"last", Value::Bool(i + 1 == size)},
                                                         {"length", Value::Integer(size)},
                                                         {"depth", Value::Integer(1)},
                                                         {"depth0", Value::Integer(0)},
                                                         {"previtem", neighbour(i - 1)},
                                                         {"nextitem", neighbour(i + 1)}}));
      scopes_[scope].insert_or_assign("loop", std::move(about));
      KVBLEND_RETURN_IF_ERROR(Assign(loop.targets, items[static_cast<size_t>(i)]));
      KVBLEND_ASSIGN_OR_RETURN(const Flow flow, RunBlock(loop.body));
      any_ended = any_ended || flow == Flow::kOn;
      if (flow == Flow::kBreak) break;
    }
    if (any_ended) return Flow::kOn;
    scopes_[scope].clear();
    return RunBlock(loop.otherwise);
  };
  absl::StatusOr<Flow> flow = run();
  scopes_.resize(scope);
  return flow;
}

absl::Status Interpreter::Assign(const std::vector<std::string>& targets, Value value) {
  if (targets.size() == 1) {
    scopes_.back().insert_or_assign(targets[0], std::move(value));
    return absl::OkStatus();
  }
  KVBLEND_ASSIGN_OR_RETURN(const Items items, Iterate(value, &budget_));
  if (items.size() != targets.size()) {
    return absl::InvalidArgumentError(
        Message(items.size(), " values are to go into ", targets.size(), " variables"));
  }
  for (size_t i = 0; i < items.size(); ++i) scopes_.back().insert_or_assign(targets[i], items[i]);
  return absl::OkStatus();
}

absl::Status Interpreter::RunSet(const Statement& set) {
  Value value;
  if (set.expression != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(value, Evaluate(*set.expression));
  } else {
    KVBLEND_ASSIGN_OR_RETURN(value, Captured(set.body));
  }
  if (set.attribute_of.empty()) return Assign(set.targets, std::move(value));
  const Value target = Lookup(set.attribute_of);
  if (!target.is(Value::Kind::kNamespace)) {
    return absl::InvalidArgumentError(Message("'", set.attribute_of, "' is no namespace but ",
                                              target.KindName(),
                                              "; only attributes of namespaces can be set"));
  }
  KVBLEND_RETURN_IF_ERROR(budget_.Spend(static_cast<int64_t>(target.pairs().size())));
  return target.SetAttribute(set.targets[0], std::move(value));
}

absl::StatusOr<Value> Interpreter::Captured(const Block& block) {
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  scopes_.emplace_back();
  const absl::StatusOr<Flow> flow = RunBlock(block);
  scopes_.pop_back();
  output_ = outer;
  if (!flow.ok()) return flow.status();
  return MakeString(std::move(text), &budget_);
}

absl::StatusOr<Value> Interpreter::CallMacro(const Statement& macro, CallValues arguments) {
  if (arguments.positional.size() > macro.parameters.size()) {
    return absl::InvalidArgumentError(Message("the macro '", macro.text, "' has ",
                                              arguments.positional.size(), " arguments; allowed: up to ",
                                              macro.parameters.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    bool known = false;
    for (const Parameter& parameter : macro.parameters) known |= parameter.name == name;
    if (!known) {
      return absl::InvalidArgumentError(
          Message("the macro '", macro.text, "' has no parameter '", name, "'"));
    }
  }
  const size_t base = std::exchange(scope_base_, scopes_.size());
  const size_t scope = scopes_.size();
  scopes_.emplace_back();
  const auto run = [&]() -> absl::StatusOr<Value> {
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const Parameter& parameter = macro.parameters[i];
      Value value = Value::Undefined(Message("'", parameter.name, "'"));
      if (const Value* given = arguments.Get(i, parameter.name)) {
        value = *given;
      } else if (parameter.default_value != nullptr) {
        KVBLEND_ASSIGN_OR_RETURN(value, Evaluate(*parameter.default_value));
      }
      scopes_[scope].insert_or_assign(parameter.name, std::move(value));
    }
    return Captured(macro.body);
  };
  absl::StatusOr<Value> result = run();
  scopes_.resize(scope);
  scope_base_ = base;
  return result;
}

absl::StatusOr<Template> Template::Parse(std::string_view source) {
  KVBLEND_ASSIGN_OR_RETURN(Block block, ParseTemplate(source));
  return Template(std::move(block));
}

absl::StatusOr<std::string> Template::Render(const Environment& environment) const {
  return Interpreter(environment).Run(block_);
}

}  // namespace kvblend::text::jinja
