// Text of a token stream, piece by piece.
#pragma once

#include <string>

#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// Turns generated tokens into text as they come. A piece never ends inside a UTF-8 character: bytes that may
/// still become one are held back (at most three). Every piece is valid UTF-8, and all pieces together equal
/// Tokenizer::Decode of all tokens. Not thread-safe.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// The text that `token` completes; often all of its own, sometimes nothing.
  std::string Append(TokenId token);

  /// How many bytes at the beginning of what Append returned last belong to earlier tokens alone: those of
  /// the U+FFFD for a character that they began and this token did not go on with, or none.
  size_t earlier_bytes() const { return earlier_bytes_; }

  /// What was held back: U+FFFD when the stream ends inside a character, else nothing. The decoder is then
  /// as new.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_back_;  // the beginning of a character
  size_t earlier_bytes_ = 0;
  bool at_start_ = true;
};

}  // namespace kvblend::text
