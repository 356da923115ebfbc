// A byte-level vocabulary small enough to reason about: control tokens, all 256 bytes, then whatever merges a
// test asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/byte_level.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

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
