#include "engine/text/stream_decoder.h"

#include "engine/text/utf8.h"

namespace kvblend::text {

std::string StreamDecoder::Append(TokenId token) {
  std::string text;
  if (skip_special_ && tokenizer_.IsSpecial(token)) return text;
  held_back_.append(tokenizer_.TokenBytes(token));
  held_back_.erase(0, AppendReplacingInvalidUtf8(held_back_, /*keep_incomplete=*/true, &text));
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  AppendReplacingInvalidUtf8(held_back_, /*keep_incomplete=*/false, &text);
  held_back_.clear();
  return text;
}

}  // namespace kvblend::text
