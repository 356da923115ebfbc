// Expressions of a template, with the precedence that Jinja gives them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/token_cursor.h"

namespace kvblend::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor* cursor) : cursor_(*cursor) {}

  /// With `tuples`, "a, b" is a list. Errors as ParseTemplate's.
  absl::StatusOr<ExpressionPtr> Parse(bool tuples);
  /// An expression without "a if b else c" around it: what a loop runs over.
  absl::StatusOr<ExpressionPtr> ParseWithoutCondition();

 private:
  using Rule = absl::StatusOr<ExpressionPtr> (ExpressionParser::*)();

  absl::StatusOr<ExpressionPtr> Tuple(Rule rule);
  absl::StatusOr<ExpressionPtr> Condition();
  absl::StatusOr<ExpressionPtr> Or();
  absl::StatusOr<ExpressionPtr> And();
  absl::StatusOr<ExpressionPtr> Not();
  absl::StatusOr<ExpressionPtr> Compare();
  absl::StatusOr<ExpressionPtr> Sum();
  absl::StatusOr<ExpressionPtr> Concatenation();
  absl::StatusOr<ExpressionPtr> Product();
  absl::StatusOr<ExpressionPtr> Power();
  absl::StatusOr<ExpressionPtr> FilteredUnary() { return Unary(true); }
  absl::StatusOr<ExpressionPtr> Unary(bool with_filters);
  absl::StatusOr<ExpressionPtr> Primary();
  absl::StatusOr<ExpressionPtr> ListLiteral();
  absl::StatusOr<ExpressionPtr> DictLiteral();
  absl::StatusOr<ExpressionPtr> Postfix(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> Call(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> Subscript(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> FiltersAndTests(ExpressionPtr object);
  absl::StatusOr<ExpressionPtr> Test(ExpressionPtr object);
  absl::StatusOr<Arguments> CallArguments();
  absl::StatusOr<ExpressionPtr> BinaryChain(Rule operand, const std::vector<std::string>& operators);

  /// Takes the operands and arguments, and refuses a tree that is too deep.
  absl::StatusOr<ExpressionPtr> Make(Expression expression) const;

  TokenCursor& cursor_;
  int nesting_ = 0;
};

}  // namespace kvblend::text::jinja
