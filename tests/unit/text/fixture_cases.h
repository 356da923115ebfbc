// Cases of tests/fixtures/tokenizers, or of the folder that the variable KVBLEND_TOKENIZER_CASES names:
// NAME.tsv has a text in C escapes and its ids in each line.
#pragma once

#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace kvblend::text {

struct FixtureCase {
  std::string text;  // may be ill-formed UTF-8
  std::string expected;
};

/// With a slash at the end.
std::string FixtureFolder();

/// A fixture's name as a test's: "unigram/plain" -> "unigram_plain".
std::string NameOfTest(std::string fixture);

/// Fails the test when the file is missing or malformed.
std::vector<FixtureCase> ReadCases(const std::string& name);

/// Fails the test when a case of NAME.tsv has other ids, and stops after five.
void ExpectSameIds(const Tokenizer& tokenizer, const std::string& name);

}  // namespace kvblend::text
