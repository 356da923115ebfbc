// How a model's chat format wraps the parts of a prompt into tokens.
//
// A prompt is: PromptStart, SystemBlock, one HistoryTurn per earlier turn, then the current user turn:
// UserOpening (with the lead-in), the chunks' own tokens, UserClosing (with the question), after which the
// model speaks. Each part is encoded on its own, so its tokens depend on nothing around it. Control tokens go
// in by id; texts are encoded as text whatever they contain.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

enum class Role { kUser, kAssistant };

/// Immutable; safe from any thread. Every chat format is a subclass that Create() knows.
class ChatTemplate {
 public:
  /// Recognises the format by the template (tokenizer.chat_template, a Jinja source; it is not executed) and
  /// the tokenizer's control tokens. kUnimplemented, naming the format where it is a known one, for formats
  /// that are not implemented; kInvalidArgument when the template's control tokens are not in the vocabulary.
  /// `tokenizer` must outlive the template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const Tokenizer& tokenizer,
                                                              std::string_view gguf_template);
  virtual ~ChatTemplate() = default;

  /// BOS for models that want it, else nothing.
  virtual std::vector<TokenId> PromptStart() const = 0;
  /// Empty when `text` is: then the prompt has no system block.
  virtual std::vector<TokenId> SystemBlock(std::string_view text) const = 0;
  virtual std::vector<TokenId> HistoryTurn(Role role, std::string_view text) const = 0;
  virtual std::vector<TokenId> UserOpening(std::string_view lead_in) const = 0;
  /// The question, the end of the user's turn and the opening of the assistant's.
  virtual std::vector<TokenId> UserClosing(std::string_view question) const = 0;
};

}  // namespace kvblend::text
