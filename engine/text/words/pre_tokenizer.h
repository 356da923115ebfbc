// Pre-tokenizers of byte-level BPE: they cut text into words, inside which alone merges happen.
//
// Each is a list of patterns (word_patterns.h), as in the published tokenizer.json files: the first cuts the
// text at its matches, the next each of the pieces, matches and what lies between them alike, and so on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblend::text {

enum class PreTokenizer {
  kGpt2,
  kSmolLm,  // every number alone, then GPT-2's
  kLlamaBpe,
  kQwen2,
  kQwen35,
  kGpt4o,
  kTekken,
  kDeepSeekLlm,
  kDeepSeekCoder,
  kDeepSeekV3,
  kDefault,  // what llama.cpp takes for files that name none
};
inline constexpr int kNumPreTokenizers = 11;

/// What a name in tokenizer.ggml.pre says.
struct PreTokenizerName {
  std::string_view name;
  PreTokenizer pattern;
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges say
  bool add_bos = false;        // prompts begin with BOS where the file does not say
};

/// kUnimplemented, listing the allowed names, for others.
absl::StatusOr<PreTokenizerName> FindPreTokenizer(std::string_view name);

/// Walks over the words of one text. Words cover the text in order, without gaps. Not thread-safe.
class WordScanner {
 public:
  static constexpr size_t kMaxStages = 6;

  /// `text` must be valid UTF-8 and outlive the scanner and the words that it returns.
  WordScanner(PreTokenizer pre_tokenizer, std::string_view text);

  /// The next word; empty at the end of the text.
  std::string_view Next();

 private:
  PreTokenizer pre_tokenizer_;
  std::string_view text_;
  size_t position_ = 0;
  std::array<size_t, kMaxStages>
      ends_{};  // of the piece at position_, after each pattern; each inside the one before
};

}  // namespace kvblend::text
