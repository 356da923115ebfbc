// A byte-level vocabulary small enough to reason about: control tokens, all 256 bytes, then whatever merges a
// test asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// How GPT-2's vocabularies spell bytes: printable ones of Latin-1 as they are, the others from U+0100 on.
inline std::string TokenStringOfBytes(std::string_view bytes) {
  std::string spelled;
  for (const char c : bytes) {
    const int byte = static_cast<uint8_t>(c);
    int code_point = byte;
    if (byte <= 0x20) code_point = 0x100 + byte;
    if (byte >= 0x7F && byte <= 0xA0) code_point = 0x121 + byte - 0x7F;
    if (byte == 0xAD) code_point = 0x143;
    if (code_point >= 0x80) spelled.push_back(static_cast<char>(0xC0 | code_point >> 6));
    spelled.push_back(static_cast<char>(code_point >= 0x80 ? 0x80 | (code_point & 0x3F) : code_point));
  }
  return spelled;
}

struct SmallVocabulary {
  static constexpr TokenId kEndOfText = 0;
  static constexpr TokenId kTurnBegin = 1;
  static constexpr TokenId kTurnEnd = 2;
  static constexpr TokenId kFirstByte = 3;
  static constexpr TokenId kFirstMerged = kFirstByte + 256;

  static TokenId Byte(char byte) { return kFirstByte + static_cast<uint8_t>(byte); }

  explicit SmallVocabulary(std::string pre_tokenizer = "gpt-2") {
    spec.pre_tokenizer = std::move(pre_tokenizer);
    spec.tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    spec.token_types = {kGgufControl, kGgufControl, kGgufControl};
    for (int byte = 0; byte < 256; ++byte) Add(std::string(1, static_cast<char>(byte)));
    spec.bos = kTurnBegin;
    spec.eos = kTurnEnd;
  }

  TokenId Add(std::string_view bytes) {
    spec.tokens.push_back(TokenStringOfBytes(bytes));
    spec.token_types.push_back(kGgufNormal);
    return static_cast<TokenId>(spec.tokens.size() - 1);
  }

  TokenId AddNamed(std::string name, GgufTokenType type) {
    spec.tokens.push_back(std::move(name));
    spec.token_types.push_back(type);
    return static_cast<TokenId>(spec.tokens.size() - 1);
  }

  /// Adds the token left + right and the merge that makes it.
  TokenId AddMerge(const std::string& left, const std::string& right) {
    spec.merges.push_back(TokenStringOfBytes(left) + " " + TokenStringOfBytes(right));
    return Add(left + right);
  }

  TokenizerSpec spec;
};

}  // namespace kvblend::text
