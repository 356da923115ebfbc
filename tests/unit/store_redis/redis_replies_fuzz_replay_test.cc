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
extern "C" int FuzzRedisReplies(const uint8_t* data, size_t size);

namespace kvblend::store {
namespace {

TEST(RedisRepliesFuzzReplayTest, CorpusAndMutationsOfIt) {
  std::vector<std::vector<uint8_t>> corpus;
  for (const auto& item :
       std::filesystem::directory_iterator(KVBLEND_SOURCE_DIR "/tests/fuzz/corpus/redis_replies")) {
    std::ifstream file(item.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    FuzzRedisReplies(corpus.back().data(), corpus.back().size());
  }
  ASSERT_GE(corpus.size(), 12u);

  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;  // a violation aborts
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bytes = corpus[random() % corpus.size()];
    for (auto changes = random() % 5; changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    if (random() % 8 == 0) bytes.push_back(static_cast<uint8_t>(random()));
    FuzzRedisReplies(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace kvblend::store
