#include "engine/text/stream_decoder.h"

#include "engine/text/utf8.h"

namespace kvblend::text {

std::string StreamDecoder::Append(TokenId token) {
  std::string text;
  earlier_bytes_ = 0;
  if (skip_special_ && tokenizer_.IsSpecial(token)) return text;
  std::string_view bytes = tokenizer_.TokenBytes(token);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (tokenizer_.strips_leading_space() && bytes.front() == ' ') bytes.remove_prefix(1);
  }
  const size_t held = held_back_.size();
  held_back_.append(bytes);
  // What is held back begins one character, so it is replaced by one as well.
  if (held > 0 && !bytes.empty() && DecodeUtf8At(held_back_, 0).length == held) {
    earlier_bytes_ = kReplacementCharacter.size();
  }
  held_back_.erase(0, AppendReplacingInvalidUtf8(held_back_, /*keep_incomplete=*/true, &text));
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  AppendReplacingInvalidUtf8(held_back_, /*keep_incomplete=*/false, &text);
  held_back_.clear();
  at_start_ = true;
  return text;
}

}  // namespace kvblend::text
