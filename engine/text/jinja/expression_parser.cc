#include "engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text::jinja {
namespace {

absl::Status NestedTooDeeply(int line) {
  return absl::ResourceExhaustedError(Message("line ", line,
                                              ": an expression is nested too deeply; allowed: ", kMaxNesting,
                                              " brackets, ", kMaxSyntaxDepth, " operations"));
}

// One or two operands; an initializer list could not move them.
std::vector<ExpressionPtr> Operands(ExpressionPtr first, ExpressionPtr second = nullptr) {
  std::vector<ExpressionPtr> operands;
  operands.push_back(std::move(first));
  if (second != nullptr) operands.push_back(std::move(second));
  return operands;
}

}  // namespace

absl::StatusOr<ExpressionPtr> ExpressionParser::Make(Expression expression) const {
  const auto look_at = [&](const ExpressionPtr& part) {
    if (part != nullptr) expression.depth = std::max(expression.depth, part->depth + 1);
  };
  for (const ExpressionPtr& operand : expression.operands) look_at(operand);
  for (const ExpressionPtr& argument : expression.arguments.positional) look_at(argument);
  for (const auto& [name, argument] : expression.arguments.named) look_at(argument);
  if (expression.depth > kMaxSyntaxDepth) return NestedTooDeeply(expression.line);
  return std::make_unique<Expression>(std::move(expression));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Parse(bool tuples) {
  return tuples ? Tuple(&ExpressionParser::Condition) : Condition();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseWithoutCondition() {
  return Tuple(&ExpressionParser::Or);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Tuple(Rule rule) {
  const int line = cursor_.line();
  KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr first, (this->*rule)());
  if (!cursor_.IsOperator(",")) return first;
  Expression list{.kind = Expression::Kind::kList, .line = line};
  list.operands.push_back(std::move(first));
  while (cursor_.TakeOperator(",")) {
    const bool ended = cursor_.IsOperator(")") || cursor_.Is(Token::Kind::kBlockEnd) ||
                       cursor_.Is(Token::Kind::kVariableEnd) || cursor_.IsOperator("=");
    if (ended) break;
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr next, (this->*rule)());
    list.operands.push_back(std::move(next));
  }
  return Make(std::move(list));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Condition() {
  const int line = cursor_.line();
  if (nesting_ >= kMaxNesting) return NestedTooDeeply(line);
  ++nesting_;
  absl::StatusOr<ExpressionPtr> result = Or();
  while (result.ok() && cursor_.TakeName("if")) {
    absl::StatusOr<ExpressionPtr> condition = Or();
    if (!condition.ok()) {
      result = std::move(condition);
      break;
    }
    Expression choice{.kind = Expression::Kind::kCondition, .line = line};
    choice.operands = Operands(*std::move(result), *std::move(condition));
    if (cursor_.TakeName("else")) {
      absl::StatusOr<ExpressionPtr> other = Condition();
      if (!other.ok()) {
        result = std::move(other);
        break;
      }
      choice.operands.push_back(*std::move(other));
    }
    result = Make(std::move(choice));
  }
  --nesting_;
  return result;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::BinaryChain(Rule operand,
                                                            const std::vector<std::string>& operators) {
  KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  for (;;) {
    const Token& next = cursor_.Peek();
    const bool known = (next.kind == Token::Kind::kOperator || next.kind == Token::Kind::kName) &&
                       std::find(operators.begin(), operators.end(), next.text) != operators.end();
    if (!known) return left;
    const Token token = cursor_.Take();
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    Expression binary{.kind = Expression::Kind::kBinary, .line = token.line, .name = token.text};
    binary.operands = Operands(std::move(left), std::move(right));
    KVBLEND_ASSIGN_OR_RETURN(left, Make(std::move(binary)));
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Or() { return BinaryChain(&ExpressionParser::And, {"or"}); }
absl::StatusOr<ExpressionPtr> ExpressionParser::And() { return BinaryChain(&ExpressionParser::Not, {"and"}); }

absl::StatusOr<ExpressionPtr> ExpressionParser::Not() {
  const int line = cursor_.line();
  int count = 0;
  while (cursor_.TakeName("not")) ++count;
  KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr inner, Compare());
  if (count == 0) return inner;
  Expression negation{.kind = Expression::Kind::kUnary, .line = line, .name = "not"};
  negation.operands = Operands(std::move(inner));
  if (count % 2 == 1) return Make(std::move(negation));
  Expression twice{.kind = Expression::Kind::kUnary, .line = line, .name = "not"};
  KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr once, Make(std::move(negation)));
  twice.operands = Operands(std::move(once));
  return Make(std::move(twice));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Compare() {
  const int line = cursor_.line();
  KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr first, Sum());
  Expression compare{.kind = Expression::Kind::kCompare, .line = line};
  compare.operands = Operands(std::move(first));
  for (;;) {
    std::string comparison;
    for (const char* candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (cursor_.IsOperator(candidate)) comparison = candidate;
    }
    if (cursor_.IsName("in")) comparison = "in";
    if (cursor_.IsName("not") && cursor_.Peek(1).kind == Token::Kind::kName && cursor_.Peek(1).text == "in") {
      cursor_.Take();
      comparison = "not in";
    }
    if (comparison.empty()) break;
    cursor_.Take();
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr next, Sum());
    compare.comparisons.push_back(std::move(comparison));
    compare.operands.push_back(std::move(next));
  }
  if (compare.comparisons.empty()) return std::move(compare.operands[0]);
  return Make(std::move(compare));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Sum() {
  return BinaryChain(&ExpressionParser::Concatenation, {"+", "-"});
}
absl::StatusOr<ExpressionPtr> ExpressionParser::Concatenation() {
  return BinaryChain(&ExpressionParser::Product, {"~"});
}
absl::StatusOr<ExpressionPtr> ExpressionParser::Product() {
  return BinaryChain(&ExpressionParser::Power, {"*", "/", "//", "%"});
}
absl::StatusOr<ExpressionPtr> ExpressionParser::Power() {
  return BinaryChain(&ExpressionParser::FilteredUnary, {"**"});
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Unary(bool with_filters) {
  const int line = cursor_.line();
  ExpressionPtr result;
  if (cursor_.IsOperator("-") || cursor_.IsOperator("+")) {
    Expression unary{.kind = Expression::Kind::kUnary, .line = line, .name = cursor_.Take().text};
    if (nesting_ >= kMaxNesting) return NestedTooDeeply(line);
    ++nesting_;
    absl::StatusOr<ExpressionPtr> operand = Unary(false);
    --nesting_;
    if (!operand.ok()) return operand;
    unary.operands = Operands(*std::move(operand));
    KVBLEND_ASSIGN_OR_RETURN(result, Make(std::move(unary)));
  } else {
    KVBLEND_ASSIGN_OR_RETURN(result, Primary());
  }
  KVBLEND_ASSIGN_OR_RETURN(result, Postfix(std::move(result)));
  if (!with_filters) return result;
  return FiltersAndTests(std::move(result));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Primary() {
  const int line = cursor_.line();
  Expression literal{.kind = Expression::Kind::kLiteral, .line = line};
  switch (cursor_.Peek().kind) {
    case Token::Kind::kName: {
      const std::string name = cursor_.Take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        literal.value = Value::Bool(name == "true" || name == "True");
        return Make(std::move(literal));
      }
      if (name == "none" || name == "None") {
        literal.value = Value::None();
        return Make(std::move(literal));
      }
      return Make({.kind = Expression::Kind::kName, .line = line, .name = name});
    }
    case Token::Kind::kString: {
      std::string text = cursor_.Take().text;
      while (cursor_.Is(Token::Kind::kString)) text += cursor_.Take().text;
      literal.value = Value::String(std::move(text));
      return Make(std::move(literal));
    }
    case Token::Kind::kInteger: {
      int64_t number = 0;
      if (!absl::SimpleAtoi(cursor_.Peek().text, &number)) return cursor_.Error("a number is too large");
      cursor_.Take();
      literal.value = Value::Integer(number);
      return Make(std::move(literal));
    }
    case Token::Kind::kFloat: {
      double number = 0;
      if (!absl::SimpleAtod(cursor_.Take().text, &number)) return cursor_.Error("a number is too large");
      literal.value = Value::Float(number);
      return Make(std::move(literal));
    }
    default:
      break;
  }
  if (cursor_.TakeOperator("(")) {
    if (cursor_.TakeOperator(")")) return Make({.kind = Expression::Kind::kList, .line = line});
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr inner, Parse(/*tuples=*/true));
    KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
    return inner;
  }
  if (cursor_.IsOperator("[")) return ListLiteral();
  if (cursor_.IsOperator("{")) return DictLiteral();
  return cursor_.Unexpected("a value");
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ListLiteral() {
  Expression list{.kind = Expression::Kind::kList, .line = cursor_.Take().line};
  while (!cursor_.IsOperator("]")) {
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr item, Condition());
    list.operands.push_back(std::move(item));
    if (!cursor_.TakeOperator(",")) break;
  }
  KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator("]"));
  return Make(std::move(list));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::DictLiteral() {
  Expression dict{.kind = Expression::Kind::kDict, .line = cursor_.Take().line};
  while (!cursor_.IsOperator("}")) {
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr key, Condition());
    KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator(":"));
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr value, Condition());
    dict.operands.push_back(std::move(key));
    dict.operands.push_back(std::move(value));
    if (!cursor_.TakeOperator(",")) break;
  }
  KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator("}"));
  return Make(std::move(dict));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Postfix(ExpressionPtr object) {
  for (;;) {
    const int line = cursor_.line();
    if (cursor_.TakeOperator(".")) {
      if (!cursor_.Is(Token::Kind::kName) && !cursor_.Is(Token::Kind::kInteger)) {
        return cursor_.Unexpected("the name of an attribute");
      }
      Expression attribute{.kind = Expression::Kind::kAttribute, .line = line};
      if (cursor_.Is(Token::Kind::kInteger)) {  // items.0 is items[0]
        attribute.kind = Expression::Kind::kItem;
        KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr index, Primary());
        attribute.operands = Operands(std::move(object), std::move(index));
      } else {
        attribute.name = cursor_.Take().text;
        attribute.operands = Operands(std::move(object));
      }
      KVBLEND_ASSIGN_OR_RETURN(object, Make(std::move(attribute)));
    } else if (cursor_.TakeOperator("[")) {
      KVBLEND_ASSIGN_OR_RETURN(object, Subscript(std::move(object)));
    } else if (cursor_.IsOperator("(")) {
      KVBLEND_ASSIGN_OR_RETURN(object, Call(std::move(object)));
    } else {
      return object;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Call(ExpressionPtr object) {
  Expression call{.kind = Expression::Kind::kCall, .line = cursor_.line()};
  call.operands = Operands(std::move(object));
  KVBLEND_ASSIGN_OR_RETURN(call.arguments, CallArguments());
  return Make(std::move(call));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Subscript(ExpressionPtr object) {
  const int line = cursor_.line();
  ExpressionPtr parts[3];
  int colons = 0;
  for (;;) {
    if (cursor_.TakeOperator(":")) {
      if (++colons > 2) return cursor_.Error("a slice has more than two ':'");
      continue;
    }
    if (cursor_.TakeOperator("]")) break;
    if (parts[colons] != nullptr) return cursor_.Unexpected("']'");
    KVBLEND_ASSIGN_OR_RETURN(parts[colons], Condition());
  }
  if (colons == 0 && parts[0] == nullptr) return cursor_.Error("'[]' has no index");
  Expression subscript{.kind = colons == 0 ? Expression::Kind::kItem : Expression::Kind::kSlice,
                       .line = line};
  subscript.operands = Operands(std::move(object));
  for (int i = 0; i < (colons == 0 ? 1 : 3); ++i) subscript.operands.push_back(std::move(parts[i]));
  return Make(std::move(subscript));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::FiltersAndTests(ExpressionPtr object) {
  for (;;) {
    const int line = cursor_.line();
    if (cursor_.TakeOperator("|")) {
      if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a filter");
      Expression filter{.kind = Expression::Kind::kFilter, .line = line, .name = cursor_.Take().text};
      filter.operands = Operands(std::move(object));
      if (cursor_.IsOperator("(")) {
        KVBLEND_ASSIGN_OR_RETURN(filter.arguments, CallArguments());
      }
      KVBLEND_ASSIGN_OR_RETURN(object, Make(std::move(filter)));
    } else if (cursor_.TakeName("is")) {
      KVBLEND_ASSIGN_OR_RETURN(object, Test(std::move(object)));
    } else if (cursor_.IsOperator("(")) {
      KVBLEND_ASSIGN_OR_RETURN(object, Call(std::move(object)));
    } else {
      return object;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Test(ExpressionPtr object) {
  Expression test{.kind = Expression::Kind::kTest, .line = cursor_.line()};
  test.negated = cursor_.TakeName("not");
  if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a test");
  test.name = cursor_.Take().text;
  test.operands = Operands(std::move(object));
  const Token& next = cursor_.Peek();
  const bool literal = next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
                       next.kind == Token::Kind::kFloat || cursor_.IsOperator("[") || cursor_.IsOperator("{");
  const bool name = next.kind == Token::Kind::kName && next.text != "else" && next.text != "or" &&
                    next.text != "and" && next.text != "is" && next.text != "if" && next.text != "in" &&
                    next.text != "not" && next.text != "recursive";
  if (cursor_.IsOperator("(")) {
    KVBLEND_ASSIGN_OR_RETURN(test.arguments, CallArguments());
  } else if (literal || name) {
    KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr argument, Primary());
    KVBLEND_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test.arguments.positional.push_back(std::move(argument));
  }
  return Make(std::move(test));
}

absl::StatusOr<Arguments> ExpressionParser::CallArguments() {
  Arguments arguments;
  KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator("("));
  while (!cursor_.IsOperator(")")) {
    if (cursor_.IsOperator("*") || cursor_.IsOperator("**")) {
      return absl::UnimplementedError(
          Message("line ", cursor_.line(), ": arguments unpacked with '*' are not implemented"));
    }
    const bool named = cursor_.Is(Token::Kind::kName) && cursor_.Peek(1).kind == Token::Kind::kOperator &&
                       cursor_.Peek(1).text == "=";
    if (named) {
      std::string name = cursor_.Take().text;
      cursor_.Take();
      KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr value, Condition());
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!arguments.named.empty())
        return cursor_.Error("an argument without a name follows one with a name");
      KVBLEND_ASSIGN_OR_RETURN(ExpressionPtr value, Condition());
      arguments.positional.push_back(std::move(value));
    }
    if (!cursor_.TakeOperator(",")) break;
  }
  KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
  return arguments;
}

}  // namespace kvblend::text::jinja
