#include "engine/prompt/text_boundary.h"

#include "engine/text/char_class.h"
#include "engine/text/utf8.h"

namespace kvblend::prompt {
namespace {

bool IsSpace(uint32_t code_point) { return text::ClassOf(code_point) == text::CharClass::kSpace; }

// Zero width space and byte order mark are no white space by their property, but nothing is seen of them.
bool IsBlank(uint32_t code_point) {
  return IsSpace(code_point) || code_point == 0x200B || code_point == 0xFEFF;
}

bool EndsSentence(uint32_t code_point) {
  switch (code_point) {
    case '.':
    case '!':
    case '?':
    case 0x2026:  // ellipsis
    case 0x061F:  // Arabic question mark
    case 0x06D4:  // Arabic full stop
    case 0x0964:  // danda
      return true;
    default:
      return false;
  }
}

// Ends of sentences behind which no space is written.
bool EndsSentenceAtOnce(uint32_t code_point) {
  return code_point == 0x3002 || code_point == 0xFF01 || code_point == 0xFF1F;  // ideographic . ! ?
}

// Quotes and brackets that may stand between a full stop and the space.
bool Closes(uint32_t code_point) {
  switch (code_point) {
    case '"':
    case '\'':
    case ')':
    case ']':
    case '}':
    case 0x00BB:
    case 0x2019:
    case 0x201D:
    case 0x300D:
    case 0x300F:
      return true;
    default:
      return false;
  }
}

bool IsCharacterStart(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

bool BoundaryScanner::Next() {
  if (position_ >= text_.size()) return false;
  const text::Utf8Step step = text::DecodeUtf8At(text_, position_);
  position_ += step.length;
  if (!IsSpace(step.code_point)) {
    line_breaks_ = 0;
    if (EndsSentenceAtOnce(step.code_point)) {
      sentence_ended_ = true;
      boundary_ = Boundary::kSentence;
    } else {
      sentence_ended_ = EndsSentence(step.code_point) || (sentence_ended_ && Closes(step.code_point));
      boundary_ = Boundary::kNone;
    }
    return true;
  }
  if (step.code_point == '\n') ++line_breaks_;
  boundary_ = line_breaks_ >= 2                      ? Boundary::kParagraph
              : line_breaks_ == 1 || sentence_ended_ ? Boundary::kSentence
                                                     : Boundary::kWord;
  return true;
}

bool BoundaryScanner::before_space() const {
  return position_ < text_.size() && IsSpace(text::DecodeUtf8At(text_, position_).code_point);
}

size_t EndOfContent(std::string_view text) {
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = FloorToCharacter(text, end - 1);
    const text::Utf8Step step = text::DecodeUtf8At(text, begin);
    if (step.kind != text::Utf8Step::Kind::kValid || begin + step.length != end ||
        !IsBlank(step.code_point)) {
      return end;
    }
    end = begin;
  }
  return 0;
}

size_t FloorToCharacter(std::string_view text, size_t position) {
  if (position >= text.size()) return text.size();
  while (position > 0 && !IsCharacterStart(text[position])) --position;
  return position;
}

size_t CeilToCharacter(std::string_view text, size_t position) {
  while (position < text.size() && !IsCharacterStart(text[position])) ++position;
  return position < text.size() ? position : text.size();
}

}  // namespace kvblend::prompt
