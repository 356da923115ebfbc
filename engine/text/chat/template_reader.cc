#include "engine/text/chat/template_reader.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/template.h"

namespace kvblend::text {
namespace {

// Around the number of a mark: characters of the private use area, which no template has and nothing changes.
constexpr std::string_view kMarkBegin = "\xEF\xA3\xB1";  // U+F8F1
constexpr std::string_view kMarkEnd = "\xEF\xA3\xB2";    // U+F8F2
// Whitespace around marks, other at the left than at the right, to see which of it stays: all, all but the
// outer line break, or none.
constexpr std::string_view kLeftPad = "\n \n\t";
constexpr std::string_view kRightPad = "\t\n \n";
enum class Strips : uint8_t { kNothing, kLineBreaks, kSpace };
constexpr Strips kAllStrips[] = {Strips::kNothing, Strips::kLineBreaks, Strips::kSpace};
// How models that reason end their thoughts.
constexpr std::string_view kThoughtsBegin = "<think>", kThoughtsEnd = "</think>";

std::string_view LeftPadBehind(Strips strips) {
  return strips == Strips::kSpace ? "" : strips == Strips::kLineBreaks ? kLeftPad.substr(1) : kLeftPad;
}
std::string_view RightPadBehind(Strips strips) {
  if (strips == Strips::kSpace) return "";
  return strips == Strips::kLineBreaks ? kRightPad.substr(0, kRightPad.size() - 1) : kRightPad;
}

// A conversation to render: 'S', 'U' and 'A' in order, the last 'U' being what the user says now.
using Shape = std::string_view;

ChatPoint PointOf(char letter) {
  return letter == 'S' ? ChatPoint::kSystem : letter == 'U' ? ChatPoint::kUser : ChatPoint::kAssistant;
}

// What a rendering has before each mark, and behind the last.
struct MarkedPrompt {
  struct Piece {
    ChatPoint from;
    ChatPoint to;
    std::string text;
  };
  std::vector<Piece> pieces;
  bool system_last = false;  // the system text came behind the history
};

std::string Excerpt(std::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(std::string(text.substr(0, 120))), "'");
}

class TemplateReader {
 public:
  TemplateReader(const jinja::Template& source, const TemplateContext& context)
      : source_(source), context_(context) {
    format_.name = "template";
  }

  absl::StatusOr<ChatFormat> Read() {
    for (const Shape shape : {"U", "UAU", "UAUAU", "UAUAUAU"}) KVBLEND_RETURN_IF_ERROR(Learn(shape));
    const absl::Status with_system = Learn("SU");
    const bool has_system = !absl::IsFailedPrecondition(with_system) && !absl::IsNotFound(with_system);
    if (has_system) {
      KVBLEND_RETURN_IF_ERROR(with_system);
      for (const Shape shape : {"SUAU", "SUAUAU", "SUAUAUAU"}) KVBLEND_RETURN_IF_ERROR(Learn(shape));
    } else {
      format_.system_place = SystemPlace::kNone;
    }
    for (const Shape shape : {"U", "UAU", "UAUAU"}) KVBLEND_RETURN_IF_ERROR(LearnTrimming(shape));
    if (has_system) {
      for (const Shape shape : {"SU", "SUAU", "SUAUAU"}) KVBLEND_RETURN_IF_ERROR(LearnTrimming(shape));
    }
    // A user's text behind a system text that the template does not have is a user's text.
    if (!has_system) format_.user_after_system = format_.user;
    // The question's end is trimmed without looking at what is before it.
    const auto same_right = [&](const Trimming& trimming) {
      return trimming.right == format_.user.right && trimming.right_breaks == format_.user.right_breaks;
    };
    if (!same_right(format_.first_user) || !same_right(format_.user_after_system)) {
      return NotOfParts("UAU", "whitespace behind a user's text is dropped in one place and kept in another");
    }
    LearnThoughts();
    // Neighbours that only some templates allow.
    LearnIfPossible(ChatPoint::kUser, ChatPoint::kUser, {"UU", "UAUU", "UUAU"});
    LearnIfPossible(ChatPoint::kAssistant, ChatPoint::kAssistant, {"UAAU", "UAAUAU"});
    LearnIfPossible(ChatPoint::kStart, ChatPoint::kAssistant, {"AU", "AUAU"});
    if (has_system) LearnIfPossible(ChatPoint::kSystem, ChatPoint::kAssistant, {"SAU", "SAUAU"});
    return std::move(format_);
  }

 private:
  static std::string Mark(size_t index) { return jinja::Message(kMarkBegin, index, kMarkEnd); }

  absl::StatusOr<std::string> Render(Shape shape, bool padded) const {
    std::vector<std::string> contents;
    for (size_t i = 0; i < shape.size(); ++i) {
      contents.push_back(padded ? jinja::Message(kLeftPad, Mark(i), kRightPad) : Mark(i));
    }
    return Render(shape, contents);
  }

  absl::StatusOr<std::string> Render(Shape shape, const std::vector<std::string>& contents) const {
    jinja::Items messages;
    for (size_t i = 0; i < shape.size(); ++i) {
      const char* role = shape[i] == 'S' ? "system" : shape[i] == 'U' ? "user" : "assistant";
      KVBLEND_ASSIGN_OR_RETURN(jinja::Value message,
                               jinja::Value::Dict({{"role", jinja::Value::String(role)},
                                                   {"content", jinja::Value::String(contents[i])}}));
      messages.push_back(std::move(message));
    }
    jinja::Environment environment{.now = context_.now, .time_zone = context_.time_zone};
    KVBLEND_ASSIGN_OR_RETURN(jinja::Value list, jinja::Value::List(std::move(messages)));
    environment.variables = {{"messages", std::move(list)},
                             {"add_generation_prompt", jinja::Value::Bool(true)},
                             {"bos_token", jinja::Value::String(std::string(context_.bos))},
                             {"eos_token", jinja::Value::String(std::string(context_.eos))},
                             {"tools", jinja::Value::None()},
                             {"documents", jinja::Value::None()}};
    return source_.Render(environment);
  }

  static absl::Status NotOfParts(Shape shape, std::string_view what) {
    return absl::UnimplementedError(jinja::Message("its prompts are not made of parts: with the turns ",
                                                   shape, ", ", what, " (S: system, U: user, A: assistant)"));
  }

  // kNotFound: the system text is not in the prompt.
  absl::StatusOr<MarkedPrompt> RenderMarked(Shape shape, bool padded) const {
    KVBLEND_ASSIGN_OR_RETURN(const std::string output, Render(shape, padded));
    std::vector<std::pair<size_t, size_t>> places;  // where a mark is, and which
    for (size_t i = 0; i < shape.size(); ++i) {
      const std::string mark = Mark(i);
      const size_t at = output.find(mark);
      if (at == std::string::npos && shape[i] == 'S')
        return absl::NotFoundError("the system text is left out");
      if (at == std::string::npos) return NotOfParts(shape, absl::StrCat("text ", i + 1, " is left out"));
      if (output.find(mark, at + 1) != std::string::npos) {
        return NotOfParts(shape, absl::StrCat("text ", i + 1, " comes twice"));
      }
      places.emplace_back(at, i);
    }
    std::sort(places.begin(), places.end());
    // The order is that of the conversation, except that the system text may come right before the last user
    // text.
    std::vector<size_t> order, moved;
    for (const auto& [at, index] : places) order.push_back(index);
    for (size_t i = 0; i < shape.size(); ++i) moved.push_back(i);
    MarkedPrompt prompt;
    if (order != moved && shape[0] == 'S') {
      std::rotate(moved.begin(), moved.begin() + 1, moved.end() - 1);
      prompt.system_last = true;
    }
    if (order != moved) return NotOfParts(shape, "the texts come in another order");
    size_t end = 0;
    ChatPoint last = ChatPoint::kStart;
    for (const auto& [at, index] : places) {
      const ChatPoint point = PointOf(shape[index]);
      prompt.pieces.push_back({last, point, output.substr(end, at - end)});
      end = at + Mark(index).size();
      last = point;
    }
    prompt.pieces.push_back({last, ChatPoint::kEnd, output.substr(end)});
    return prompt;
  }

  // Takes over what the shape shows; fails where that contradicts what is known.
  absl::Status Learn(Shape shape) {
    KVBLEND_ASSIGN_OR_RETURN(const MarkedPrompt prompt, RenderMarked(shape, /*padded=*/false));
    if (prompt.system_last) format_.system_place = SystemPlace::kLastUser;
    if (!prompt.system_last && shape.size() > 2 && shape[0] == 'S' &&
        format_.system_place == SystemPlace::kLastUser) {
      return NotOfParts(shape, "the system text is in another place");
    }
    for (const MarkedPrompt::Piece& piece : prompt.pieces) {
      std::optional<std::string>& known = format_.piece(piece.from, piece.to);
      if (!known.has_value()) {
        known = piece.text;
      } else if (*known != piece.text) {
        return NotOfParts(shape,
                          jinja::Message("between ", NameOf(piece.from), " and ", NameOf(piece.to), " is ",
                                         Excerpt(piece.text), ", elsewhere ", Excerpt(*known)));
      }
    }
    return absl::OkStatus();
  }

  // Leaves the format as it was unless all shapes agree with it and with each other.
  void LearnIfPossible(ChatPoint from, ChatPoint to, std::initializer_list<Shape> shapes) {
    for (const Shape shape : shapes) {
      const ChatFormat before = format_;
      if (Learn(shape).ok()) continue;
      format_ = before;
      format_.piece(from, to).reset();
      return;
    }
  }

  Trimming* TrimmingOf(ChatPoint point, ChatPoint before) {
    switch (point) {
      case ChatPoint::kSystem:
        return &format_.system;
      case ChatPoint::kUser:
        if (before == ChatPoint::kStart) return &format_.first_user;
        return before == ChatPoint::kSystem ? &format_.user_after_system : &format_.user;
      case ChatPoint::kAssistant:
        return &format_.assistant;
      default:
        return nullptr;
    }
  }

  absl::Status LearnTrimming(Shape shape) {
    KVBLEND_ASSIGN_OR_RETURN(const MarkedPrompt prompt, RenderMarked(shape, /*padded=*/true));
    Trimming* left = nullptr;  // of the text before the piece
    for (const MarkedPrompt::Piece& piece : prompt.pieces) {
      Trimming* const right = TrimmingOf(piece.to, piece.from);
      const std::string& plain = *format_.piece(piece.from, piece.to);
      bool found = false;
      for (const Strips behind : kAllStrips) {    // of the text before the piece
        for (const Strips before : kAllStrips) {  // of the text behind the piece
          if (found || (left == nullptr && behind != Strips::kSpace) ||
              (right == nullptr && before != Strips::kSpace)) {
            continue;
          }
          if (jinja::Message(RightPadBehind(behind), plain, LeftPadBehind(before)) != piece.text) continue;
          found = true;
          KVBLEND_RETURN_IF_ERROR(Note(shape, left, /*of_left_end=*/false, behind));
          KVBLEND_RETURN_IF_ERROR(Note(shape, right, /*of_left_end=*/true, before));
        }
      }
      if (!found) {
        return NotOfParts(shape, jinja::Message("between ", NameOf(piece.from), " and ", NameOf(piece.to),
                                                " whitespace of the texts is neither kept nor dropped"));
      }
      left = right;
    }
    return absl::OkStatus();
  }

  // Leaves thoughts where they are unless the template takes them out of every earlier answer.
  void LearnThoughts() {
    constexpr Shape kShape = "UAUAU";
    std::vector<std::string> contents;
    std::vector<ChatTurn> turns;
    for (size_t i = 0; i < kShape.size(); ++i) {
      contents.push_back(kShape[i] == 'U' ? Mark(i)
                                          : jinja::Message(kThoughtsBegin, "\n", Mark(i + kShape.size()),
                                                           "\n", kThoughtsEnd, kLeftPad, Mark(i)));
    }
    // One answer also speaks of the mark, which ends its thoughts in some templates.
    contents[1] += jinja::Message(kThoughtsEnd, kLeftPad, Mark(2 * kShape.size()));
    const absl::StatusOr<std::string> rendered = Render(kShape, contents);
    if (!rendered.ok()) return;
    for (size_t i = 0; i + 1 < kShape.size(); ++i) {
      turns.push_back({kShape[i] == 'U' ? Role::kUser : Role::kAssistant, contents[i]});
    }
    ChatFormat tried = format_;
    tried.thoughts_end = std::string(kThoughtsEnd);
    for (int i = 0; i < 2 * static_cast<int>(std::size(kAllStrips)); ++i) {
      const Strips strips = kAllStrips[i / 2];
      tried.behind_thoughts = {.left = strips == Strips::kSpace,
                               .left_breaks = strips == Strips::kLineBreaks};
      tried.first_ends_thoughts = i % 2 != 0;
      const auto parts = ComposeChat(tried, {}, turns, contents.back());
      if (!parts.ok()) return;
      std::string expected;
      for (const ChatPart& part : *parts) expected.append(part.piece).append(part.text);
      expected += *tried.piece(ChatPoint::kUser, ChatPoint::kEnd);
      if (expected != *rendered) continue;
      format_ = std::move(tried);
      return;
    }
  }

  absl::Status Note(Shape shape, Trimming* trimming, bool of_left_end, Strips trims) {
    if (trimming == nullptr) return absl::OkStatus();
    bool& all = of_left_end ? trimming->left : trimming->right;
    bool& breaks = of_left_end ? trimming->left_breaks : trimming->right_breaks;
    const Strips known = all ? Strips::kSpace : breaks ? Strips::kLineBreaks : Strips::kNothing;
    const std::pair<const Trimming*, bool> key(trimming, of_left_end);
    const bool noted = std::find(noted_.begin(), noted_.end(), key) != noted_.end();
    if (noted && known != trims) {
      return NotOfParts(shape, "whitespace around a text is dropped in one place and kept in another");
    }
    all = trims == Strips::kSpace;
    breaks = trims == Strips::kLineBreaks;
    if (!noted) noted_.push_back(key);
    return absl::OkStatus();
  }

  const jinja::Template& source_;
  const TemplateContext& context_;
  ChatFormat format_;
  std::vector<std::pair<const Trimming*, bool>> noted_;
};

}  // namespace

absl::StatusOr<ChatFormat> ReadChatFormat(std::string_view source, const TemplateContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const jinja::Template parsed, jinja::Template::Parse(source));
  return TemplateReader(parsed, context).Read();
}

}  // namespace kvblend::text
