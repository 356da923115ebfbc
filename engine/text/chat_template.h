// How a model's chat format wraps the parts of a prompt into tokens.
//
// A prompt is: its opening (system text, earlier turns, lead-in), the chunks' own tokens, and its closing
// (the question and what makes the model speak). The opening's and closing's tokens are those of one
// rendering of the whole; chunks are tokenized on their own. A prompt without lead-in and chunks is one
// rendering from beginning to end. Control tokens go in by id, from the format's own text only; texts are
// encoded as text whatever they contain.
//
// The format is data (chat/chat_format.h). It comes from the table of formats that have names, or from the
// file's own template, which is run on marks instead of texts when the model is loaded
// (chat/template_reader.h): after that no template runs, and no text of a user ever goes through one.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/chat/chat_format.h"
#include "engine/text/chat/prompt_encoder.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

struct ChatTemplateOptions {
  std::string_view source = {};      // tokenizer.chat_template, a Jinja source; may be empty
  std::string_view format = "auto";  // by name, or "auto": what the source writes
  std::optional<TokenId> eos = {};   // what templates know as eos_token
  absl::Time now = {};               // for templates that put in the date, which is UTC's
};

/// Immutable; safe from any thread.
class ChatTemplate {
 public:
  struct Opening {
    std::vector<TokenId> system;  // begins with BOS for models that want it
    std::vector<TokenId> history;
    std::vector<TokenId> lead_in;
  };
  struct WholePrompt {
    Opening opening;  // its lead-in is what the format has before the question
    std::vector<TokenId> question;
  };

  /// kInvalidArgument: a format of no known name, a template that is none, a format whose control tokens the
  /// vocabulary lacks. kUnimplemented: no template, or one that the interpreter or its prompts' parts do not
  /// allow (the message says what and where). All tell which names are allowed instead. `tokenizer` must
  /// outlive the template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const Tokenizer& tokenizer,
                                                              const ChatTemplateOptions& options);

  /// Whether prompts tell the date, so that those of another day have other tokens.
  bool tells_date() const { return tells_date_; }

  /// The prompt up to the first chunk. An empty system text makes no system block, except where a model's own
  /// template puts one in. Some formats drop whitespace around texts: then that at the ends of the system
  /// text and of turns, at the beginning of the lead-in and at the end of the question. A user's turn with
  /// parts has the tokens that it had when it was the last one, chunks and question included, so that their
  /// KV is found again. kInvalidArgument, naming system_text or the turn: what the format does not allow.
  /// With a `budget`, here and below, texts are encoded only as far as it goes.
  absl::StatusOr<Opening> Open(std::string_view system_text, std::span<const ChatTurn> history,
                               std::string_view lead_in, TokenBudget* budget = nullptr) const;
  /// The question, the end of the user's turn and the opening of the assistant's. `position` is where the
  /// question stands: behind text, unless a control token is the last of what comes before.
  std::vector<TokenId> Close(std::string_view question, TextPosition position = TextPosition::kWithin,
                             TokenBudget* budget = nullptr) const;

  /// A prompt without lead-in and chunks, with the tokens that the model's tokenizer gives the whole of it:
  /// what the format has before the question and the question itself may be one text, as in a turn of
  /// `history` that has no parts, and whitespace is dropped at both of the question's ends. Errors as of
  /// Open.
  absl::StatusOr<WholePrompt> Whole(std::string_view system_text, std::span<const ChatTurn> history,
                                    std::string_view question, TokenBudget* budget = nullptr) const;

  /// Its name, or "template" for one that has none.
  const std::string& format_name() const { return format_.name; }

 private:
  ChatTemplate(const Tokenizer& tokenizer, ChatFormat format, bool tells_date)
      : tokenizer_(tokenizer),
        format_(std::move(format)),
        control_(tokenizer, format_),
        tells_date_(tells_date) {}

  /// Appends all `parts` but the last one's text, which goes behind what `opening` then ends with.
  void AppendOpening(std::span<const ChatPart> parts, size_t num_turns, PromptEncoder& encoder,
                     Opening& opening) const;
  /// Models that want BOS get it once, whether their template writes it or not.
  void AddBos(Opening& opening) const;

  const Tokenizer& tokenizer_;
  ChatFormat format_;
  ControlTokens control_;
  bool tells_date_;
};

}  // namespace kvblend::text
