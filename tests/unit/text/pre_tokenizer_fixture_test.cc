// The words of pre-tokenizers against Hugging Face `tokenizers`:
// tests/fixtures/tokenizers/pre_tokenizers.tsv, written by tests/fixtures/make_pre_tokenizer_fixtures.py (or
// in the folder KVBLEND_TOKENIZER_CASES).
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/text/utf8.h"
#include "engine/text/words/pre_tokenizer.h"
#include "gtest/gtest.h"
#include "tests/unit/text/fixture_cases.h"

namespace kvblend::text {
namespace {

std::string WordLengths(PreTokenizer pre_tokenizer, std::string_view text) {
  std::vector<size_t> lengths;
  WordScanner scanner(pre_tokenizer, text);
  for (std::string_view word = scanner.Next(); !word.empty(); word = scanner.Next()) {
    lengths.push_back(word.size());
  }
  return absl::StrJoin(lengths, " ");
}

TEST(PreTokenizerFixtureTest, CutsTheSameWords) {
  std::ifstream file(FixtureFolder() + "pre_tokenizers.tsv");
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << FixtureFolder();
  std::vector<PreTokenizer> pre_tokenizers;
  const std::vector<std::string> names = absl::StrSplit(line, '\t');
  for (const std::string& name : names) {
    const auto known = FindPreTokenizer(name);
    ASSERT_TRUE(known.ok()) << known.status();
    pre_tokenizers.push_back(known->pattern);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumPreTokenizers));
  int mismatches = 0;
  int cases = 0;
  for (; std::getline(file, line); ++cases) {
    const std::vector<std::string> columns = absl::StrSplit(line, '\t');
    std::string escaped;
    ASSERT_TRUE(columns.size() == names.size() + 1 && absl::CUnescape(columns[0], &escaped)) << line;
    std::string text;
    AppendReplacingInvalidUtf8(escaped, /*keep_incomplete=*/false, &text);
    std::string expected;
    for (size_t i = 0; i < names.size(); ++i) {
      if (columns[i + 1] != "=") expected = columns[i + 1];
      const std::string lengths = WordLengths(pre_tokenizers[i], text);
      if (lengths == expected) continue;
      ADD_FAILURE() << names[i] << ", line " << cases + 2 << ", text \"" << absl::CHexEscape(text)
                    << "\"\n  expected " << expected << "\n  got      " << lengths;
      if (++mismatches == 10) FAIL() << "stopping after ten mismatches";
    }
  }
  EXPECT_GE(cases, 300);
}

// No pattern takes more than linear time on long runs.
TEST(PreTokenizerTest, LongRunsAreCutInLinearTime) {
  constexpr size_t kLength = 1 << 15;
  for (int i = 0; i < kNumPreTokenizers; ++i) {
    for (const char* piece : {"a", "A", "\u4e2d", "\u0301", "7", "!", "'", " ", "\n", "\u00a0", "/",
                              "\u4e2dA", " \n", "\u200b", "\ue000a"}) {
      std::string text;
      while (text.size() < kLength) text += piece;
      for (const char* end : {"", "x"}) {
        size_t covered = 0;
        const std::string whole = text + end;
        WordScanner scanner(static_cast<PreTokenizer>(i), whole);
        for (std::string_view word = scanner.Next(); !word.empty(); word = scanner.Next())
          covered += word.size();
        EXPECT_EQ(covered, text.size() + std::string_view(end).size());
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::text
