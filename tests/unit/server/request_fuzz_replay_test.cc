// Runs the fuzzer's body over its committed corpus and over mutations of it, so that every build has it
// compiled and true.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <vector>

#include "gtest/gtest.h"

// LLVMFuzzerTestOneInput under another name (CMakeLists.txt).
extern "C" int FuzzRequest(const uint8_t* data, size_t size);

namespace kvblend::server {
namespace {

TEST(RequestFuzzReplayTest, CorpusAndMutationsOfIt) {
  std::vector<std::vector<uint8_t>> corpus;
  for (const auto& entry :
       std::filesystem::directory_iterator(KVBLEND_SOURCE_DIR "/tests/fuzz/corpus/request")) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    FuzzRequest(corpus.back().data(), corpus.back().size());
  }
  ASSERT_GE(corpus.size(), 8u);

  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;  // a violation aborts
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::vector<uint8_t> bytes = corpus[random() % corpus.size()];
    for (auto changes = random() % 4; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    if (random() % 8 == 0) bytes.resize(1 + random() % bytes.size());
    FuzzRequest(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace kvblend::server
