// A parsed template: a tree of statements and expressions. Plain data; immutable once parsed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Expression {
  enum class Kind {
    kLiteral,    // value
    kName,       // name
    kList,       // operands; also a tuple
    kDict,       // operands: key, value, key, value, ...
    kUnary,      // name: "-", "+" or "not"; operands[0]
    kBinary,     // name: an arithmetic operator, "~", "and" or "or"; two operands
    kCompare,    // operands[0] comparisons[0] operands[1] comparisons[1] ...
    kCondition,  // operands: value, condition, and maybe the other value
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], the latter three may be null
    kCall,       // operands[0](arguments)
    kFilter,     // operands[0]|name(arguments)
    kTest,       // operands[0] is name(arguments); negated: is not
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string name = {};
  Value value = {};
  bool negated = false;
  std::vector<ExpressionPtr> operands = {};
  std::vector<std::string> comparisons = {};  // "==", "<", "in", "not in", ...
  Arguments arguments = {};
};

struct Parameter {
  std::string name;
  ExpressionPtr default_value;  // may be null
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind {
    kText,    // text
    kOutput,  // expression
    kFor,     // targets, expression (what over), condition (may be null), body, otherwise
    kIf,      // branches, otherwise
    kSet,     // targets or attribute_of.name; expression, or body where that is null
    kMacro,   // text (its name), parameters, body
    kScope,   // body, in a scope of its own; text: what it is
    kBreak,
    kContinue,
  };
  struct Branch {
    ExpressionPtr condition;
    Block body;
  };

  Kind kind;
  int line = 0;
  std::string text = {};
  std::vector<std::string> targets = {};
  std::string attribute_of = {};  // "ns" of {% set ns.name = ... %}, name being targets[0]; else empty
  ExpressionPtr expression = {};
  ExpressionPtr condition = {};
  std::vector<Branch> branches = {};
  std::vector<Parameter> parameters = {};
  Block body = {};
  Block otherwise = {};
};

/// kInvalidArgument: not a template; kUnimplemented: a construct of Jinja that chat templates have no use
/// for; kResourceExhausted: too large or nested too deeply. All name the line.
absl::StatusOr<Block> ParseTemplate(std::string_view source);

}  // namespace kvblend::text::jinja
