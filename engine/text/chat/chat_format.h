// A chat format as data: what stands between the texts of a conversation.
//
// A conversation is a row of texts: maybe a system text, turns of user and assistant, and at last what the
// user says now. A format says what its prompt has between any two neighbours, at the start and at the end,
// and at which ends a text loses its whitespace. That is all there is to it, so a prompt can be made of parts
// that are tokenized on their own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend::text {

enum class Role { kUser, kAssistant };

/// Whether any of the texts is not empty: one without text has no tokens, and is as if it were not there.
bool HaveText(std::span<const std::string> texts);

/// One turn of a conversation; the texts belong to somebody else.
struct ChatTurn {
  /// Whether it has parts that are tokenized on their own, as those of a prompt's last turn are.
  bool has_parts() const { return !lead_in.empty() || HaveText(chunks); }

  Role role;
  std::string_view text;                     // all of it, or what stands behind the chunks
  std::string_view lead_in = {};             // of a user: what stands before the chunks
  std::span<const std::string> chunks = {};  // of a user
};

/// Neighbours in a conversation. A piece of a format leads from one to the next.
enum class ChatPoint : uint8_t { kStart, kSystem, kUser, kAssistant, kEnd };
inline constexpr int kNumChatPoints = 5;
std::string_view NameOf(ChatPoint point);

enum class SystemPlace : uint8_t {
  kNone,      // the format has no system text
  kFirst,     // before all turns
  kLastUser,  // at the beginning of what the user says now, behind the history
};

/// Ends at which a text loses its whitespace, or, where not that, its line breaks.
struct Trimming {
  bool left = false;
  bool right = false;
  bool left_breaks = false;
  bool right_breaks = false;
  bool operator==(const Trimming&) const = default;
};

/// Plain data.
struct ChatFormat {
  /// How a user's text behind `from` is trimmed.
  Trimming UserTrimming(ChatPoint from) const {
    return from == ChatPoint::kStart ? first_user : from == ChatPoint::kSystem ? user_after_system : user;
  }

  std::string name;
  SystemPlace system_place = SystemPlace::kFirst;
  /// [from][to]; nothing where the format does not allow these neighbours.
  std::array<std::array<std::optional<std::string>, kNumChatPoints>, kNumChatPoints> pieces = {};
  Trimming system = {};
  Trimming user = {};
  Trimming first_user = {};         // a user's text at the start of a prompt, without system text before it
  Trimming user_after_system = {};  // a user's text right behind the system text
  Trimming assistant = {};
  /// What ends a model's thoughts, as "</think>": of an assistant's text, what stands before the last one (or
  /// the first) and the mark itself are dropped, and the rest is trimmed by `behind_thoughts`. Empty:
  /// thoughts stay.
  std::string thoughts_end = {};
  bool first_ends_thoughts = false;
  Trimming behind_thoughts = {};
  /// Texts that the vocabulary must have as control tokens: without them the format means nothing to the
  /// model.
  std::vector<std::string> control_tokens = {};
  /// Whitespace behind a control token is dropped, which the tokenizer's own files say and GGUF files do not.
  bool strips_behind_control = false;

  std::optional<std::string>& piece(ChatPoint from, ChatPoint to) {
    return pieces[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
  const std::optional<std::string>& piece(ChatPoint from, ChatPoint to) const {
    return pieces[static_cast<size_t>(from)][static_cast<size_t>(to)];
  }
};

/// One part of a prompt: a piece of the format, or a text of the conversation, trimmed.
struct ChatPart {
  ChatPoint from;
  ChatPoint to;
  std::string_view piece;
  std::string_view text;  // of `to`, behind the piece; of a turn with parts the lead-in
  // Where a turn has parts: what follows the lead-in, each part tokenized on its own.
  bool has_parts = false;
  std::span<const std::string> chunks = {};
  std::string_view question = {};
};

/// What comes before what the user says now, whose beginning is `user_text`: the pieces and texts in order.
/// No system block where `system_text` is empty. The parts refer to the format and the texts.
/// kInvalidArgument, naming the turn: neighbours or a system text that the format does not allow, parts of an
/// assistant's turn.
absl::StatusOr<std::vector<ChatPart>> ComposeChat(const ChatFormat& format, std::string_view system_text,
                                                  std::span<const ChatTurn> history,
                                                  std::string_view user_text);

/// `text` without the whitespace, or the line breaks, at the ends that `trimming` names.
std::string_view Trimmed(std::string_view text, Trimming trimming);
/// At that end alone.
std::string_view TrimmedLeft(std::string_view text, Trimming trimming);
std::string_view TrimmedRight(std::string_view text, Trimming trimming);

/// All formats that have names, with the model's own first and last token in their places.
std::vector<ChatFormat> NamedChatFormats(std::string_view bos, std::string_view eos);

/// "auto, chatml, ...": what --chat-format takes.
std::string ChatFormatNames();
/// kInvalidArgument, with the names that are allowed.
absl::Status CheckChatFormatName(std::string_view name);

/// The named format that `learned`, which was read from a template, is; null if none. A template may know
/// less than the format: no system text, fewer neighbours, no opening of the answer. Where a ChatML template
/// would put in a system text of its own for want of one, the format does not.
const ChatFormat* FindNamedFormat(const ChatFormat& learned, const std::vector<ChatFormat>& named);

}  // namespace kvblend::text
