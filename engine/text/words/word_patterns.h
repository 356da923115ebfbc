// The regular expressions that pre-tokenizers are made of, each written by hand for one published pattern,
// linear in the text and without recursion. Internal to engine/text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/text/char_class.h"

namespace kvblend::text {

/// A part of a text that a pattern sees; nothing before it, and nothing from its end on.
struct Stretch {
  struct Character {
    uint32_t code_point;
    uint32_t length;  // bytes; 0 past the end
    CharClass char_class;
  };

  std::string_view text;  // valid UTF-8, up to where the stretch ends

  Character At(size_t position) const;
  /// Past the run of characters of `classes` that begins at `position`.
  size_t Skip(size_t position, CharClasses classes) const;
};

// Each Match function gives the end of its match at `begin`; `begin` when it does not match there.

/// What tells one pattern of Llama 3's family from another:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[letters]+|\p{N}{1,max_numbers}
///   | ?[^\s\p{N}letters]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
struct LlamaPattern {
  CharClasses letters = kLetters;
  int max_numbers = 3;
};

/// What tells one pattern of GPT-4o's family from another, where UP is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and
/// LOW is [\p{Ll}\p{Lm}\p{Lo}\p{M}]; the contractions are those of Llama 3:
///   [^\r\n\p{L}\p{N}]?UP*LOW+contraction?|[^\r\n\p{L}\p{N}]?UP+LOW*contraction?|\p{N}{1,max_numbers}
///   | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
struct CasePattern {
  bool contractions = true;
  int max_numbers = 3;
};

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t MatchGpt2(const Stretch& stretch, size_t begin);
size_t MatchLlama(const Stretch& stretch, size_t begin, const LlamaPattern& pattern);
size_t MatchCases(const Stretch& stretch, size_t begin, const CasePattern& pattern);
/// [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*
/// |\s*[\r\n]+|\s+(?!\S)|\s+
size_t MatchDeepSeekV3(const Stretch& stretch, size_t begin);

/// \p{N}{1,max_numbers}
size_t MatchNumbers(const Stretch& stretch, size_t begin, size_t max_numbers);
/// [0-9][0-9][0-9]
size_t MatchThreeDigits(const Stretch& stretch, size_t begin);
/// [\r\n]
size_t MatchLineBreak(const Stretch& stretch, size_t begin);
/// \s?[classes]+
size_t MatchSpaced(const Stretch& stretch, size_t begin, CharClasses classes);
/// [\p{P}$+<=>^~|]+
size_t MatchPunctuation(const Stretch& stretch, size_t begin);
/// \s+$, where the stretch has no line break unless it is one.
size_t MatchTrailingSpaces(const Stretch& stretch, size_t begin);
/// [\u4E00-\u9FA5\u3040-\u30FF]+ and [\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+
size_t MatchHanKana(const Stretch& stretch, size_t begin);
size_t MatchEastAsian(const Stretch& stretch, size_t begin);
/// \s?[...]+ with the cased letters, or the punctuation, that DeepSeek LLM's pattern lists.
size_t MatchSpacedCased(const Stretch& stretch, size_t begin);
size_t MatchSpacedListedPunctuation(const Stretch& stretch, size_t begin);

}  // namespace kvblend::text
