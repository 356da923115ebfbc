// Pre-tokenizers of byte-level BPE: they cut text into words, inside which alone merges happen.
//
// Each scanner is written by hand for one published pattern (of the tokenizer.json files of GPT-2, SmolLM2,
// Llama 3 and Qwen2) and runs in time linear in the text, without recursion:
//
//   gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   smollm     every \p{N} character alone; gpt-2's pattern on each stretch between them
//   llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|[ ]?[^\s\p{L}\p{N}]+[\r\n]*
//              |\s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2      llama-bpe's with \p{N} in place of \p{N}{1,3}
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/char_class.h"

namespace kvblend::text {

enum class PreTokenizer { kGpt2, kSmolLm, kLlamaBpe, kQwen2 };

/// By the name that GGUF files carry in tokenizer.ggml.pre. kUnimplemented, listing the allowed names, for
/// others.
absl::StatusOr<PreTokenizer> ParsePreTokenizer(std::string_view name);

/// Whether the tokenizers with this pattern take a word that is a token as it is, before all merges.
bool IgnoresMerges(PreTokenizer pre_tokenizer);

/// Walks over the words of one text. Words cover the text in order, without gaps. Not thread-safe.
class WordScanner {
 public:
  /// `text` must be valid UTF-8 and outlive the scanner and the words that it returns.
  WordScanner(PreTokenizer pre_tokenizer, std::string_view text);

  /// The next word; empty at the end of the text.
  std::string_view Next();

 private:
  struct Character {
    uint32_t code_point;
    uint32_t length;  // bytes; 0 past the end
    CharClass char_class;
  };

  Character At(size_t position) const;  // up to end_, where a stretch ends
  size_t SkipClass(size_t position, CharClass char_class) const;
  size_t Contraction(bool ignore_case) const;  // end of a contraction at position_, or position_
  size_t Whitespace() const;                   // \s+(?!\S)|\s+ at position_
  size_t NextGpt2() const;
  size_t NextSmolLm();
  size_t NextLlama(int max_numbers) const;

  PreTokenizer pre_tokenizer_;
  std::string_view text_;
  size_t position_ = 0;
  size_t end_;  // lookahead sees nothing from here on
};

}  // namespace kvblend::text
