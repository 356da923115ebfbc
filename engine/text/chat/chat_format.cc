#include "engine/text/chat/chat_format.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/python_text.h"

namespace kvblend::text {

std::string_view NameOf(ChatPoint point) {
  static constexpr std::string_view kNames[] = {"the start", "the system text", "the user's text",
                                                "the assistant's text", "the end"};
  return kNames[static_cast<size_t>(point)];
}

bool HaveText(std::span<const std::string> texts) {
  return std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
}

std::string_view Trimmed(std::string_view text, Trimming trimming) {
  if (trimming.left) text = jinja::StripLeft(text);
  if (trimming.right) text = jinja::StripRight(text);
  if (trimming.left_breaks) text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  if (trimming.right_breaks) text = text.substr(0, text.find_last_not_of('\n') + 1);
  return text;
}

std::string_view TrimmedLeft(std::string_view text, Trimming trimming) {
  return Trimmed(text, {.left = trimming.left, .left_breaks = trimming.left_breaks});
}

std::string_view TrimmedRight(std::string_view text, Trimming trimming) {
  return Trimmed(text, {.right = trimming.right, .right_breaks = trimming.right_breaks});
}

namespace {

// An answer of an earlier turn, without its thoughts where the format drops them.
std::string_view EarlierAnswer(const ChatFormat& format, std::string_view text) {
  const size_t end = format.thoughts_end.empty()  ? std::string_view::npos
                     : format.first_ends_thoughts ? text.find(format.thoughts_end)
                                                  : text.rfind(format.thoughts_end);
  if (end != std::string_view::npos) {
    text = Trimmed(text.substr(end + format.thoughts_end.size()), format.behind_thoughts);
  }
  return Trimmed(text, format.assistant);
}

}  // namespace

absl::StatusOr<std::vector<ChatPart>> ComposeChat(const ChatFormat& format, std::string_view system_text,
                                                  std::span<const ChatTurn> history,
                                                  std::string_view user_text) {
  if (!system_text.empty() && format.system_place == SystemPlace::kNone) {
    return absl::InvalidArgumentError(jinja::Message("system_text has ", system_text.size(),
                                                     " bytes; allowed by the model's chat format: none"));
  }
  std::vector<ChatPart> parts;
  ChatPoint last = ChatPoint::kStart;
  const auto add = [&](ChatPoint to, std::string_view text) {
    const std::optional<std::string>& piece = format.piece(last, to);
    if (!piece.has_value()) return false;
    parts.push_back({last, to, *piece, text});
    last = to;
    return true;
  };
  const auto add_system = [&] { return add(ChatPoint::kSystem, Trimmed(system_text, format.system)); };
  const auto refusal = [&](std::string_view what, ChatPoint to) {
    return absl::InvalidArgumentError(
        jinja::Message(what, ": ", NameOf(to), " behind ", NameOf(last),
                       "; allowed by the model's chat format: turns of user and "
                       "assistant that alternate, the user's first"));
  };
  if (!system_text.empty() && format.system_place == SystemPlace::kFirst && !add_system()) {
    return refusal("system_text", ChatPoint::kSystem);
  }
  for (size_t i = 0; i < history.size(); ++i) {
    const bool user = history[i].role == Role::kUser;
    const ChatPoint to = user ? ChatPoint::kUser : ChatPoint::kAssistant;
    const Trimming trimming = format.UserTrimming(last);
    if (!history[i].has_parts()) {
      const std::string_view text =
          user ? Trimmed(history[i].text, trimming) : EarlierAnswer(format, history[i].text);
      if (!add(to, text)) return refusal(absl::StrCat("history[", i, "]"), to);
      continue;
    }
    if (!user) {
      return absl::InvalidArgumentError(jinja::Message("history[", i, "] is the assistant's and has ",
                                                       history[i].chunks.empty() ? "a lead_in" : "chunks",
                                                       "; allowed: text alone"));
    }
    if (!add(to, TrimmedLeft(history[i].lead_in, trimming)))
      return refusal(absl::StrCat("history[", i, "]"), to);
    parts.back().has_parts = true;
    parts.back().chunks = history[i].chunks;
    parts.back().question = TrimmedRight(history[i].text, format.user);
  }
  if (!system_text.empty() && format.system_place == SystemPlace::kLastUser && !add_system()) {
    return refusal("system_text", ChatPoint::kSystem);
  }
  if (!add(ChatPoint::kUser, TrimmedLeft(user_text, format.UserTrimming(last)))) {
    return refusal(
        history.empty() ? "question" : absl::StrCat("history[", history.size() - 1, "] and the question"),
        ChatPoint::kUser);
  }
  return parts;
}

const ChatFormat* FindNamedFormat(const ChatFormat& learned, const std::vector<ChatFormat>& named) {
  const auto matches = [&](const ChatFormat& format) {
    const bool has_system = learned.system_place != SystemPlace::kNone;
    if (has_system && (learned.system_place != format.system_place || learned.system != format.system ||
                       learned.user_after_system != format.user_after_system)) {
      return false;
    }
    if (learned.user != format.user || learned.first_user != format.first_user ||
        learned.assistant != format.assistant) {
      return false;
    }
    for (int from = 0; from < kNumChatPoints; ++from) {
      for (int to = 0; to < kNumChatPoints; ++to) {
        const auto& piece = learned.pieces[from][to];
        const auto& wanted = format.pieces[from][to];
        if (!piece.has_value() || piece == wanted) continue;
        if (!wanted.has_value()) return false;
        const auto from_point = static_cast<ChatPoint>(from);
        const auto to_point = static_cast<ChatPoint>(to);
        const bool default_system = format.name == "chatml" && from_point == ChatPoint::kStart &&
                                    to_point != ChatPoint::kSystem && piece->ends_with(*wanted);
        // A template without the opening of the answer ends with the user's turn, with which that opening
        // begins.
        const bool no_opening = to_point == ChatPoint::kEnd && !piece->empty() &&
                                wanted->starts_with(*piece) &&
                                format.piece(ChatPoint::kUser, ChatPoint::kAssistant) == wanted;
        if (!default_system && !no_opening) return false;
      }
    }
    return true;
  };
  for (const ChatFormat& format : named) {
    if (matches(format)) return &format;
  }
  return nullptr;
}

}  // namespace kvblend::text
