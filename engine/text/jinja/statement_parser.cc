// Statements: {% for %}, {% if %}, {% set %}, {% macro %} and what stands between them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/token_cursor.h"

namespace kvblend::text::jinja {
namespace {

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : cursor_(std::move(tokens)), expressions_(&cursor_) {}

  absl::StatusOr<Block> Run() {
    KVBLEND_ASSIGN_OR_RETURN(Block block, Body({}));
    if (!cursor_.Is(Token::Kind::kEnd))
      return cursor_.Error(Message("'", cursor_.Peek(1).text, "' ends nothing"));
    return block;
  }

 private:
  using Result = absl::StatusOr<std::unique_ptr<Statement>>;

  // Statements up to {% one of `ends`: the cursor is left in front of that tag, or at the end of the
  // template.
  absl::StatusOr<Block> Body(const std::vector<std::string_view>& ends) {
    if (depth_ >= kMaxNesting) {
      return absl::ResourceExhaustedError(
          Message("line ", cursor_.line(), ": blocks are nested deeper than ", kMaxNesting, " levels"));
    }
    ++depth_;
    absl::StatusOr<Block> body = BodyAtDepth(ends);
    --depth_;
    return body;
  }

  absl::StatusOr<Block> BodyAtDepth(const std::vector<std::string_view>& ends) {
    Block block;
    while (!cursor_.Is(Token::Kind::kEnd)) {
      const int line = cursor_.line();
      if (cursor_.Is(Token::Kind::kText)) {
        auto text = std::make_unique<Statement>(Statement{.kind = Statement::Kind::kText, .line = line});
        text->text = cursor_.Take().text;
        block.push_back(std::move(text));
      } else if (cursor_.Is(Token::Kind::kVariableBegin)) {
        cursor_.Take();
        auto output = std::make_unique<Statement>(Statement{.kind = Statement::Kind::kOutput, .line = line});
        KVBLEND_ASSIGN_OR_RETURN(output->expression, expressions_.Parse(/*tuples=*/true));
        KVBLEND_RETURN_IF_ERROR(cursor_.Expect(Token::Kind::kVariableEnd, "'}}'"));
        block.push_back(std::move(output));
      } else {
        const Token& name = cursor_.Peek(1);
        if (name.kind == Token::Kind::kName && std::find(ends.begin(), ends.end(), name.text) != ends.end())
          break;
        if (name.kind == Token::Kind::kName &&
            (name.text.starts_with("end") || name.text.starts_with("el"))) {
          return cursor_.Error(Message("'", name.text, "' ends nothing that began"));
        }
        KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<Statement> statement, Tag());
        block.push_back(std::move(statement));
      }
    }
    if (!ends.empty() && cursor_.Is(Token::Kind::kEnd)) {
      return cursor_.Error(Message("the template ends before '", ends.back(), "'"));
    }
    return block;
  }

  absl::Status EndOfTag() { return cursor_.Expect(Token::Kind::kBlockEnd, "'%}'"); }

  // {% name %}, `name` being where the cursor is. Some also repeat what they end: {% endmacro name %}.
  absl::Status End() {
    cursor_.Take();
    const bool macro = cursor_.Take().text == "endmacro";
    if (macro && cursor_.Is(Token::Kind::kName)) cursor_.Take();
    return EndOfTag();
  }

  Result Tag() {
    cursor_.Take();
    if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a statement");
    const Token name = cursor_.Take();
    auto statement =
        std::make_unique<Statement>(Statement{.kind = Statement::Kind::kScope, .line = name.line});
    if (name.text == "for") return For(std::move(statement));
    if (name.text == "if") return If(std::move(statement));
    if (name.text == "set") return Set(std::move(statement));
    if (name.text == "macro") return Macro(std::move(statement));
    if (name.text == "generation") {  // marks what the model wrote, which matters for training alone
      KVBLEND_RETURN_IF_ERROR(EndOfTag());
      KVBLEND_ASSIGN_OR_RETURN(statement->body, Body({"endgeneration"}));
      KVBLEND_RETURN_IF_ERROR(End());
      return statement;
    }
    if (name.text == "break" || name.text == "continue") {
      if (loops_ == 0) return cursor_.Error(Message("'", name.text, "' is in no loop"));
      statement->kind = name.text == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      KVBLEND_RETURN_IF_ERROR(EndOfTag());
      return statement;
    }
    static constexpr std::string_view kOfJinja[] = {"call",   "filter",     "with",    "include",
                                                    "import", "from",       "extends", "block",
                                                    "do",     "autoescape", "trans",   "debug"};
    if (std::find(std::begin(kOfJinja), std::end(kOfJinja), name.text) != std::end(kOfJinja)) {
      return absl::UnimplementedError(
          Message("line ", name.line, ": {% ", name.text, " %} is not implemented"));
    }
    return absl::InvalidArgumentError(Message("line ", name.line, ": {% ", name.text,
                                              " %} is not known; allowed: for, if, set, macro, break, "
                                              "continue, generation, raw"));
  }

  absl::StatusOr<std::vector<std::string>> Targets() {
    std::vector<std::string> targets;
    const bool bracket = cursor_.TakeOperator("(");
    do {
      if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a variable");
      targets.push_back(cursor_.Take().text);
    } while (cursor_.TakeOperator(",") && cursor_.Is(Token::Kind::kName));
    if (bracket) KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
    return targets;
  }

  Result For(std::unique_ptr<Statement> loop) {
    loop->kind = Statement::Kind::kFor;
    KVBLEND_ASSIGN_OR_RETURN(loop->targets, Targets());
    if (!cursor_.TakeName("in")) return cursor_.Unexpected("'in'");
    KVBLEND_ASSIGN_OR_RETURN(loop->expression, expressions_.ParseWithoutCondition());
    if (cursor_.TakeName("if")) {
      KVBLEND_ASSIGN_OR_RETURN(loop->condition, expressions_.Parse(/*tuples=*/false));
    }
    if (cursor_.IsName("recursive")) {
      return absl::UnimplementedError(
          Message("line ", cursor_.line(), ": recursive loops are not implemented"));
    }
    KVBLEND_RETURN_IF_ERROR(EndOfTag());
    ++loops_;
    absl::StatusOr<Block> body = Body({"else", "endfor"});
    --loops_;
    if (!body.ok()) return body.status();
    loop->body = *std::move(body);
    if (cursor_.Peek(1).text == "else") {
      KVBLEND_RETURN_IF_ERROR(End());
      KVBLEND_ASSIGN_OR_RETURN(loop->otherwise, Body({"endfor"}));
    }
    KVBLEND_RETURN_IF_ERROR(End());
    return loop;
  }

  Result If(std::unique_ptr<Statement> choice) {
    choice->kind = Statement::Kind::kIf;
    for (;;) {
      Statement::Branch branch;
      KVBLEND_ASSIGN_OR_RETURN(branch.condition, expressions_.Parse(/*tuples=*/true));
      KVBLEND_RETURN_IF_ERROR(EndOfTag());
      KVBLEND_ASSIGN_OR_RETURN(branch.body, Body({"elif", "else", "endif"}));
      choice->branches.push_back(std::move(branch));
      if (cursor_.Peek(1).text != "elif") break;
      cursor_.Take();
      cursor_.Take();
    }
    if (cursor_.Peek(1).text == "else") {
      KVBLEND_RETURN_IF_ERROR(End());
      KVBLEND_ASSIGN_OR_RETURN(choice->otherwise, Body({"endif"}));
    }
    KVBLEND_RETURN_IF_ERROR(End());
    return choice;
  }

  Result Set(std::unique_ptr<Statement> set) {
    set->kind = Statement::Kind::kSet;
    if (cursor_.Is(Token::Kind::kName) && cursor_.Peek(1).kind == Token::Kind::kOperator &&
        cursor_.Peek(1).text == ".") {
      set->attribute_of = cursor_.Take().text;
      cursor_.Take();
      if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of an attribute");
      set->targets.push_back(cursor_.Take().text);
    } else {
      KVBLEND_ASSIGN_OR_RETURN(set->targets, Targets());
    }
    if (cursor_.TakeOperator("=")) {
      KVBLEND_ASSIGN_OR_RETURN(set->expression, expressions_.Parse(/*tuples=*/true));
      KVBLEND_RETURN_IF_ERROR(EndOfTag());
      return set;
    }
    if (cursor_.IsOperator("|")) {
      return absl::UnimplementedError(
          Message("line ", cursor_.line(), ": a filter of a {% set %} block is not implemented"));
    }
    KVBLEND_RETURN_IF_ERROR(EndOfTag());
    KVBLEND_ASSIGN_OR_RETURN(set->body, Body({"endset"}));
    KVBLEND_RETURN_IF_ERROR(End());
    return set;
  }

  Result Macro(std::unique_ptr<Statement> macro) {
    macro->kind = Statement::Kind::kMacro;
    if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a macro");
    macro->text = cursor_.Take().text;
    KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator("("));
    while (!cursor_.IsOperator(")")) {
      if (!cursor_.Is(Token::Kind::kName)) return cursor_.Unexpected("the name of a parameter");
      Parameter parameter{.name = cursor_.Take().text, .default_value = nullptr};
      if (cursor_.TakeOperator("=")) {
        KVBLEND_ASSIGN_OR_RETURN(parameter.default_value, expressions_.Parse(/*tuples=*/false));
      } else if (!macro->parameters.empty() && macro->parameters.back().default_value != nullptr) {
        return cursor_.Error("a parameter without a default follows one with a default");
      }
      macro->parameters.push_back(std::move(parameter));
      if (!cursor_.TakeOperator(",")) break;
    }
    KVBLEND_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
    KVBLEND_RETURN_IF_ERROR(EndOfTag());
    const int loops = std::exchange(loops_, 0);
    absl::StatusOr<Block> body = Body({"endmacro"});
    loops_ = loops;
    if (!body.ok()) return body.status();
    macro->body = *std::move(body);
    KVBLEND_RETURN_IF_ERROR(End());
    return macro;
  }

  TokenCursor cursor_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Block> ParseTemplate(std::string_view source) {
  KVBLEND_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace kvblend::text::jinja
