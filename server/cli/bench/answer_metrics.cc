#include "server/cli/bench/answer_metrics.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace kvblend::server::cli {
namespace {

bool IsArticle(std::string_view word) { return word == "a" || word == "an" || word == "the"; }

// U+00C0 .. U+00DE are 0xC3 0x80 .. 0x9E in UTF-8 and their lower case lies 0x20 above; U+00D7 is the
// multiplication sign.
bool IsLatin1UpperCase(unsigned char lead, unsigned char trail) {
  return lead == 0xC3 && trail >= 0x80 && trail <= 0x9E && trail != 0x97;
}

}  // namespace

std::vector<std::string> NormalizedAnswerWords(std::string_view text) {
  std::string cleaned;
  cleaned.reserve(text.size());
  unsigned char previous = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsLatin1UpperCase(previous, byte)) {
      cleaned.push_back(static_cast<char>(byte + 0x20));
    } else if (!absl::ascii_ispunct(byte)) {
      cleaned.push_back(absl::ascii_tolower(byte));
    }
    previous = byte;
  }
  std::vector<std::string> words;
  const std::vector<std::string> all =
      absl::StrSplit(cleaned, absl::ByAnyChar(" \t\r\n\v\f"), absl::SkipEmpty());
  for (const std::string& word : all) {
    if (!IsArticle(word)) words.push_back(word);
  }
  return words;
}

double AnswerF1(std::string_view prediction, std::string_view gold) {
  const std::vector<std::string> predicted_words = NormalizedAnswerWords(prediction);
  const std::vector<std::string> gold_words = NormalizedAnswerWords(gold);
  if (predicted_words.empty() || gold_words.empty()) {
    return predicted_words.empty() && gold_words.empty() ? 1.0 : 0.0;
  }
  std::map<std::string, int> unmatched;
  for (const std::string& word : gold_words) ++unmatched[word];
  int common = 0;
  for (const std::string& word : predicted_words) {
    const auto it = unmatched.find(word);
    if (it == unmatched.end() || it->second == 0) continue;
    --it->second;
    ++common;
  }
  // 2PR / (P + R) with P = common / predicted and R = common / gold.
  return 2.0 * common / static_cast<double>(predicted_words.size() + gold_words.size());
}

double BestAnswerF1(std::string_view prediction, absl::Span<const std::string> golds) {
  double best = 0;
  for (const std::string& gold : golds) best = std::max(best, AnswerF1(prediction, gold));
  return best;
}

bool IsExactMatch(std::string_view prediction, absl::Span<const std::string> golds) {
  const std::vector<std::string> words = NormalizedAnswerWords(prediction);
  return std::any_of(golds.begin(), golds.end(),
                     [&](const std::string& gold) { return NormalizedAnswerWords(gold) == words; });
}

std::string_view FirstLine(std::string_view completion) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const size_t begin = completion.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  const std::string_view line = completion.substr(begin, completion.find('\n', begin) - begin);
  return line.substr(0, line.find_last_not_of(kBlank) + 1);
}

}  // namespace kvblend::server::cli
