#include "tests/unit/text/fixture_cases.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace kvblend::text {

std::string FixtureFolder() {
  const char* folder = std::getenv("KVBLEND_TOKENIZER_CASES");
  return (folder != nullptr ? std::string(folder) : KVBLEND_SOURCE_DIR "/tests/fixtures/tokenizers") + "/";
}

std::string NameOfTest(std::string fixture) {
  std::replace(fixture.begin(), fixture.end(), '/', '_');
  return fixture;
}

std::vector<FixtureCase> ReadCases(const std::string& name) {
  std::ifstream file(FixtureFolder() + name + ".tsv");
  std::vector<FixtureCase> cases;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    FixtureCase fixture_case;
    if (tab == std::string::npos || !absl::CUnescape(line.substr(0, tab), &fixture_case.text)) {
      ADD_FAILURE() << "line " << cases.size() + 1 << " of " << name << ".tsv is malformed";
      return {};
    }
    fixture_case.expected = line.substr(tab + 1);
    cases.push_back(std::move(fixture_case));
  }
  EXPECT_GE(cases.size(), 80u) << FixtureFolder() << name << ".tsv";
  return cases;
}

void ExpectSameIds(const Tokenizer& tokenizer, const std::string& name) {
  int mismatches = 0;
  const std::vector<FixtureCase> cases = ReadCases(name);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<TokenId> tokens = tokenizer.Encode(cases[i].text);
    ASSERT_EQ(tokenizer.EncodeAtMost(cases[i].text, TextPosition::kFirst, tokens.size()), tokens);
    if (!tokens.empty()) {
      ASSERT_EQ(tokenizer.EncodeAtMost(cases[i].text, TextPosition::kFirst, tokens.size() - 1), std::nullopt)
          << "line " << i + 1 << " of " << name;
    }
    const std::string ids = absl::StrJoin(tokens, " ");
    if (ids == cases[i].expected) continue;
    ADD_FAILURE() << "line " << i + 1 << " of " << name << ", text \"" << absl::CHexEscape(cases[i].text)
                  << "\"\n  expected " << cases[i].expected << "\n  got      " << ids;
    if (++mismatches == 5) FAIL() << "stopping after five mismatches";
  }
}

}  // namespace kvblend::text
