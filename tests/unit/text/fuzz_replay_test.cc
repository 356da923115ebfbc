// Runs the fuzzers' bodies over their committed corpora and over random inputs, so that every build has them
// compiled and true.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

// LLVMFuzzerTestOneInput of the two fuzzers, under other names (CMakeLists.txt).
extern "C" int FuzzTokenizer(const uint8_t* data, size_t size);
extern "C" int FuzzDetokenizer(const uint8_t* data, size_t size);

namespace kvblend::text {
namespace {

using Fuzzer = int (*)(const uint8_t*, size_t);

int ReplayCorpus(Fuzzer fuzzer, const std::string& name) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(KVBLEND_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    fuzzer(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++count;
  }
  return count;
}

void RunRandomInputs(Fuzzer fuzzer) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;  // a violation aborts
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint8_t> bytes(random() % 64);
    constexpr char kCommon[] = "ab 12'sSm\n\t!<tool>\xC3\xA9\xE4\xB8\x96\xF0\x9F\x98\x80\xC2\xA0";
    for (uint8_t& byte : bytes) {
      byte = random() % 3 == 0 ? static_cast<uint8_t>(random())
                               : static_cast<uint8_t>(kCommon[random() % (sizeof(kCommon) - 1)]);
    }
    fuzzer(bytes.data(), bytes.size());
  }
}

TEST(FuzzReplayTest, Tokenizer) {
  EXPECT_GE(ReplayCorpus(FuzzTokenizer, "tokenizer"), 5);
  RunRandomInputs(FuzzTokenizer);
}

TEST(FuzzReplayTest, Detokenizer) {
  EXPECT_GE(ReplayCorpus(FuzzDetokenizer, "detokenizer"), 5);
  RunRandomInputs(FuzzDetokenizer);
}

}  // namespace
}  // namespace kvblend::text
