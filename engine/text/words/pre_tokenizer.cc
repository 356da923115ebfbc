#include "engine/text/words/pre_tokenizer.h"

#include <algorithm>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/text/words/word_patterns.h"

namespace kvblend::text {
namespace {

// As llama.cpp, which gave the names, maps them to patterns.
constexpr PreTokenizerName kNames[] = {
    {"a.x-4.0", PreTokenizer::kGpt2},
    {"chatglm-bpe", PreTokenizer::kLlamaBpe},
    {"codeshell", PreTokenizer::kSmolLm},
    {"command-r", PreTokenizer::kSmolLm},
    {"dbrx", PreTokenizer::kLlamaBpe},
    {"deepseek-coder", PreTokenizer::kDeepSeekCoder},
    {"deepseek-llm", PreTokenizer::kDeepSeekLlm},
    {"deepseek-r1-qwen", PreTokenizer::kQwen2},
    {"deepseek-v3", PreTokenizer::kDeepSeekV3},
    {"default", PreTokenizer::kDefault},
    {"exaone", PreTokenizer::kSmolLm},
    {"exaone4", PreTokenizer::kGpt2},
    {"f2llmv2", PreTokenizer::kQwen2},
    {"falcon-h1", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"falcon3", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"gigachat", PreTokenizer::kGpt2},
    {"glm4", PreTokenizer::kLlamaBpe},
    {"gpt-2", PreTokenizer::kGpt2},
    {"gpt-4o", PreTokenizer::kGpt4o},
    {"granite-docling", PreTokenizer::kGpt2},
    {"grok-2", PreTokenizer::kQwen2},
    {"hunyuan", PreTokenizer::kQwen2},
    {"hunyuan-dense", PreTokenizer::kDeepSeekV3},
    {"jais", PreTokenizer::kGpt2},
    {"joyai-llm", PreTokenizer::kDeepSeekV3},
    {"kanana2", PreTokenizer::kGpt4o},
    {"kormo", PreTokenizer::kQwen2},
    {"lfm2", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama-bpe", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama-v3", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama3", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama4", PreTokenizer::kGpt4o},
    {"megrez", PreTokenizer::kQwen2},
    {"mellum", PreTokenizer::kGpt2},
    {"midm-2.0", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"minerva-7b", PreTokenizer::kSmolLm},
    {"minimax-m2", PreTokenizer::kGpt4o},
    {"mpt", PreTokenizer::kGpt2},
    {"olmo", PreTokenizer::kGpt2},
    {"phi-2", PreTokenizer::kGpt2},
    {"pixtral", PreTokenizer::kLlamaBpe, /*ignore_merges=*/true, /*add_bos=*/true},
    {"qwen2", PreTokenizer::kQwen2},
    {"qwen35", PreTokenizer::kQwen35},
    {"refact", PreTokenizer::kSmolLm},
    {"smaug-bpe", PreTokenizer::kLlamaBpe},
    {"smollm", PreTokenizer::kSmolLm},
    {"solar-open", PreTokenizer::kQwen2},
    {"stablelm2", PreTokenizer::kQwen2},
    {"starcoder", PreTokenizer::kSmolLm},
    {"tekken", PreTokenizer::kTekken, /*ignore_merges=*/true, /*add_bos=*/true},
    {"trillion", PreTokenizer::kGpt2},
};

enum class Stage : uint8_t {
  kGpt2,
  kLlama3,
  kQwen2,
  kQwen35,
  kGpt4o,
  kTekken,
  kDeepSeekV3,
  kOneNumber,
  kUpToThreeNumbers,
  kNumbers,
  kThreeDigits,
  kLineBreak,
  kSpacedLetters,
  kSpacedPunctuation,
  kPunctuation,
  kTrailingSpaces,
  kHanKana,
  kEastAsian,
  kSpacedCased,
  kSpacedListedPunctuation,
};

std::span<const Stage> StagesOf(PreTokenizer pre_tokenizer) {
  using enum Stage;
  static constexpr Stage kOfGpt2[] = {kGpt2};
  static constexpr Stage kOfSmolLm[] = {kOneNumber, kGpt2};
  static constexpr Stage kOfLlama[] = {kLlama3};
  static constexpr Stage kOfQwen2[] = {kQwen2};
  static constexpr Stage kOfQwen35[] = {kQwen35};
  static constexpr Stage kOfGpt4o[] = {kGpt4o};
  static constexpr Stage kOfTekken[] = {kTekken};
  static constexpr Stage kOfDeepSeekLlm[] = {kLineBreak,      kSpacedCased, kSpacedListedPunctuation,
                                             kTrailingSpaces, kEastAsian,   kOneNumber};
  static constexpr Stage kOfDeepSeekCoder[] = {kLineBreak, kSpacedLetters, kSpacedPunctuation, kEastAsian,
                                               kOneNumber};
  static constexpr Stage kOfDeepSeekV3[] = {kUpToThreeNumbers, kHanKana, kDeepSeekV3};
  static constexpr Stage kOfDefault[] = {kPunctuation, kGpt2, kNumbers, kThreeDigits};
  switch (pre_tokenizer) {
    case PreTokenizer::kGpt2:
      return kOfGpt2;
    case PreTokenizer::kSmolLm:
      return kOfSmolLm;
    case PreTokenizer::kLlamaBpe:
      return kOfLlama;
    case PreTokenizer::kQwen2:
      return kOfQwen2;
    case PreTokenizer::kQwen35:
      return kOfQwen35;
    case PreTokenizer::kGpt4o:
      return kOfGpt4o;
    case PreTokenizer::kTekken:
      return kOfTekken;
    case PreTokenizer::kDeepSeekLlm:
      return kOfDeepSeekLlm;
    case PreTokenizer::kDeepSeekCoder:
      return kOfDeepSeekCoder;
    case PreTokenizer::kDeepSeekV3:
      return kOfDeepSeekV3;
    case PreTokenizer::kDefault:
      break;
  }
  return kOfDefault;
}

// End of the match at `begin`, or `begin`.
size_t Match(Stage stage, const Stretch& stretch, size_t begin) {
  constexpr CharClasses kMarkedLetters = kLetters | CharClass::kMark;
  switch (stage) {
    case Stage::kGpt2:
      return MatchGpt2(stretch, begin);
    case Stage::kLlama3:
      return MatchLlama(stretch, begin, {.letters = kLetters, .max_numbers = 3});
    case Stage::kQwen2:
      return MatchLlama(stretch, begin, {.letters = kLetters, .max_numbers = 1});
    case Stage::kQwen35:
      return MatchLlama(stretch, begin, {.letters = kMarkedLetters, .max_numbers = 1});
    case Stage::kGpt4o:
      return MatchCases(stretch, begin, {.contractions = true, .max_numbers = 3});
    case Stage::kTekken:
      return MatchCases(stretch, begin, {.contractions = false, .max_numbers = 1});
    case Stage::kDeepSeekV3:
      return MatchDeepSeekV3(stretch, begin);
    case Stage::kOneNumber:
      return MatchNumbers(stretch, begin, 1);
    case Stage::kUpToThreeNumbers:
      return MatchNumbers(stretch, begin, 3);
    case Stage::kNumbers:
      return MatchNumbers(stretch, begin, stretch.text.size());
    case Stage::kThreeDigits:
      return MatchThreeDigits(stretch, begin);
    case Stage::kLineBreak:
      return MatchLineBreak(stretch, begin);
    case Stage::kSpacedLetters:
      return MatchSpaced(stretch, begin, kLetters);
    case Stage::kSpacedPunctuation:
      return MatchSpaced(stretch, begin, AnyOf(CharClass::kPunctuation));
    case Stage::kPunctuation:
      return MatchPunctuation(stretch, begin);
    case Stage::kTrailingSpaces:
      return MatchTrailingSpaces(stretch, begin);
    case Stage::kHanKana:
      return MatchHanKana(stretch, begin);
    case Stage::kEastAsian:
      return MatchEastAsian(stretch, begin);
    case Stage::kSpacedCased:
      return MatchSpacedCased(stretch, begin);
    case Stage::kSpacedListedPunctuation:
      return MatchSpacedListedPunctuation(stretch, begin);
  }
  return begin;
}

// End of the first piece at `begin`: of a match, or of what lies before the next one.
size_t Cut(Stage stage, const Stretch& stretch, size_t begin) {
  if (const size_t end = Match(stage, stretch, begin); end > begin) return end;
  size_t end = begin;
  do {
    // A run of spaces that is not at the end matches in no part: trying each would take quadratic time.
    const size_t after_spaces =
        stage == Stage::kTrailingSpaces ? stretch.Skip(end, AnyOf(CharClass::kSpace)) : end;
    end = after_spaces > end ? after_spaces : end + stretch.At(end).length;
  } while (end < stretch.text.size() && Match(stage, stretch, end) == end);
  return end;
}

}  // namespace

absl::StatusOr<PreTokenizerName> FindPreTokenizer(std::string_view name) {
  std::vector<std::string> allowed;
  for (const PreTokenizerName& row : kNames) {
    if (row.name == name) return row;
    allowed.push_back(absl::StrCat("'", std::string(row.name), "'"));
  }
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.ggml.pre is '", absl::CHexEscape(std::string(name.substr(0, 80))),
                   "', which is not implemented; allowed: ", absl::StrJoin(allowed, ", ")));
}

WordScanner::WordScanner(PreTokenizer pre_tokenizer, std::string_view text)
    : pre_tokenizer_(pre_tokenizer), text_(text) {}

std::string_view WordScanner::Next() {
  if (position_ >= text_.size()) return {};
  const std::span<const Stage> stages = StagesOf(pre_tokenizer_);
  size_t stretch_end = text_.size();
  for (size_t i = 0; i < stages.size(); ++i) {
    if (ends_[i] <= position_) ends_[i] = Cut(stages[i], {text_.substr(0, stretch_end)}, position_);
    stretch_end = ends_[i];
  }
  const size_t begin = position_;
  position_ = stretch_end;
  return text_.substr(begin, position_ - begin);
}

}  // namespace kvblend::text
