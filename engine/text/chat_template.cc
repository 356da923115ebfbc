#include "engine/text/chat_template.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvblend::text {
namespace {

constexpr char kTurnBegin[] = "<|im_start|>";
constexpr char kTurnEnd[] = "<|im_end|>";

/// ChatML: <|im_start|>role\ntext<|im_end|>\n for every turn.
class ChatMlTemplate final : public ChatTemplate {
 public:
  ChatMlTemplate(const Tokenizer& tokenizer, TokenId turn_begin, TokenId turn_end)
      : tokenizer_(tokenizer), turn_begin_(turn_begin), turn_end_(turn_end) {}

  std::vector<TokenId> PromptStart() const override {
    if (!tokenizer_.add_bos() || !tokenizer_.bos()) return {};
    return {*tokenizer_.bos()};
  }

  std::vector<TokenId> SystemBlock(std::string_view text) const override {
    return text.empty() ? std::vector<TokenId>() : Turn("system", text);
  }

  std::vector<TokenId> HistoryTurn(Role role, std::string_view text) const override {
    return Turn(role == Role::kUser ? "user" : "assistant", text);
  }

  std::vector<TokenId> UserOpening(std::string_view lead_in) const override {
    std::vector<TokenId> tokens;
    AppendOpening("user", lead_in, &tokens);
    return tokens;
  }

  std::vector<TokenId> UserClosing(std::string_view question) const override {
    std::vector<TokenId> tokens = tokenizer_.Encode(question);
    AppendEnd(&tokens);
    AppendOpening("assistant", "", &tokens);
    return tokens;
  }

 private:
  // The role's line and the text are encoded together, as one rendering of the whole template would have
  // them.
  void AppendOpening(std::string_view role, std::string_view text, std::vector<TokenId>* tokens) const {
    tokens->push_back(turn_begin_);
    const std::vector<TokenId> encoded =
        tokenizer_.Encode(absl::StrCat(std::string(role), "\n", std::string(text)));
    tokens->insert(tokens->end(), encoded.begin(), encoded.end());
  }

  void AppendEnd(std::vector<TokenId>* tokens) const {
    tokens->push_back(turn_end_);
    const std::vector<TokenId> line_break = tokenizer_.Encode("\n");
    tokens->insert(tokens->end(), line_break.begin(), line_break.end());
  }

  std::vector<TokenId> Turn(std::string_view role, std::string_view text) const {
    std::vector<TokenId> tokens;
    AppendOpening(role, text, &tokens);
    AppendEnd(&tokens);
    return tokens;
  }

  const Tokenizer& tokenizer_;
  TokenId turn_begin_;
  TokenId turn_end_;
};

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// A name for the error message; empty when the format is not a well-known one.
std::string_view NameOfOtherFormat(std::string_view gguf_template) {
  if (Contains(gguf_template, "<|start_header_id|>")) return "llama3";
  if (Contains(gguf_template, "<start_of_turn>")) return "gemma";
  if (Contains(gguf_template, "[INST]")) return "llama2 / mistral";
  if (Contains(gguf_template, "<|start_of_role|>")) return "granite";
  if (Contains(gguf_template, "<|user|>")) return "zephyr / phi3";
  return {};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const Tokenizer& tokenizer,
                                                                   std::string_view gguf_template) {
  if (!Contains(gguf_template, kTurnBegin) || !Contains(gguf_template, kTurnEnd)) {
    if (gguf_template.empty()) {
      return absl::UnimplementedError(
          "tokenizer.chat_template is missing: the model has no chat format; allowed: chatml");
    }
    const std::string_view known = NameOfOtherFormat(gguf_template);
    return absl::UnimplementedError(absl::StrCat(
        "tokenizer.chat_template is of the format ",
        known.empty()
            ? absl::StrCat("that begins '", absl::CHexEscape(std::string(gguf_template.substr(0, 80))), "'")
            : std::string(known),
        ", which is not implemented; allowed: chatml"));
  }
  const auto turn_begin = tokenizer.FindSpecial(kTurnBegin);
  const auto turn_end = tokenizer.FindSpecial(kTurnEnd);
  if (!turn_begin || !turn_end || !tokenizer.IsSpecial(*turn_begin) || !tokenizer.IsSpecial(*turn_end)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.chat_template is chatml, which needs the control tokens ", kTurnBegin,
                     " and ", kTurnEnd, "; the vocabulary lacks one of them"));
  }
  return std::make_unique<ChatMlTemplate>(tokenizer, *turn_begin, *turn_end);
}

}  // namespace kvblend::text
