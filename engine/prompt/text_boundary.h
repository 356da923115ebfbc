// Where prose may be cut: after paragraphs, sentences and words. Pure functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvblend::prompt {

/// What ends just before a place; white space belongs to the text that it follows. The greater the value, the
/// better the place for a cut.
enum class Boundary : uint8_t { kNone, kWord, kSentence, kParagraph };

/// Goes through the places between the characters of a text, from its beginning, and tells the boundary at
/// each. A paragraph ends with an empty line, a sentence with its full stop (or the like) or its line. Text
/// after a place does not matter. Not thread-safe.
class BoundaryScanner {
 public:
  /// `text` is valid UTF-8 and outlives the scanner.
  explicit BoundaryScanner(std::string_view text) : text_(text) {}

  /// Goes to the place behind the next character. False at the end of the text.
  bool Next();

  size_t position() const { return position_; }  // in bytes; 0 before the first Next
  Boundary boundary() const { return boundary_; }
  /// Whether white space follows: then the boundary at a later place is as good.
  bool before_space() const;

 private:
  std::string_view text_;
  size_t position_ = 0;
  Boundary boundary_ = Boundary::kNone;
  bool sentence_ended_ = false;  // before position_, or before the white space that lies before it
  int line_breaks_ = 0;          // in the white space before position_
};

/// Where the last character of `text` ends that is not blank; 0 if all of them are. Blank are white space of
/// all kinds (text::CharClass::kSpace), and U+200B and U+FEFF, which take no room. Bytes that are no
/// character are not blank. Time: that of what is blank at the end.
size_t EndOfContent(std::string_view text);

/// The last place between two characters of `text` at or before `position`.
size_t FloorToCharacter(std::string_view text, size_t position);
/// The first place between two characters of `text` at or after `position`.
size_t CeilToCharacter(std::string_view text, size_t position);

}  // namespace kvblend::prompt
