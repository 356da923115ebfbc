// One rendering of a template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/call_values.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/template.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {

/// For one thread and one rendering. Errors as Template::Render's.
class Interpreter {
 public:
  /// `environment` outlives the interpreter.
  explicit Interpreter(const Environment& environment);

  absl::StatusOr<std::string> Run(const Block& block);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  using Scope = absl::flat_hash_map<std::string, Value>;

  // Statements (interpreter.cc).
  absl::StatusOr<Flow> RunBlock(const Block& block);
  absl::StatusOr<Flow> RunStatement(const Statement& statement);
  absl::StatusOr<Flow> RunFor(const Statement& loop);
  absl::StatusOr<Flow> RunIf(const Statement& choice);
  absl::Status RunSet(const Statement& set);
  absl::Status Assign(const std::vector<std::string>& targets, Value value);
  /// What a block writes, as a value instead of output.
  absl::StatusOr<Value> Captured(const Block& block);
  absl::Status Write(const Value& value);
  absl::StatusOr<Value> CallMacro(const Statement& macro, CallValues arguments);

  // Expressions (expressions.cc).
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> EvaluateAtDepth(const Expression& expression);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression);
  absl::StatusOr<Value> EvaluateCompare(const Expression& expression);
  absl::StatusOr<Value> EvaluateDict(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateCall(const Expression& expression);
  absl::StatusOr<Value> CallBuiltIn(const std::string& name, const CallValues& arguments);
  absl::StatusOr<Value> FormatTime(const CallValues& arguments) const;
  absl::StatusOr<CallValues> EvaluateArguments(const Arguments& arguments);
  Value Lookup(const std::string& name) const;

  const Environment& environment_;
  Budget budget_;
  std::string* output_ = nullptr;
  std::vector<Scope>
      scopes_;  // [0]: the template's own; from scope_base_ on: those that names are looked up in, too
  size_t scope_base_ = 0;
  int depth_ = 0;
};

/// `status` with the line and what is there in front, unless it has a line already.
absl::Status AtLine(int line, const absl::Status& status);

}  // namespace kvblend::text::jinja
