// Runs a fuzzer's body over its committed corpus and over mutations of it, so that every build has it
// compiled and true. A violation aborts. kvblend_fuzz_replay of cmake/targets.cmake says which fuzzer.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvblend::test_support {
namespace {

TEST(FuzzReplayTest, CorpusAndMutationsOfIt) {
  std::vector<std::vector<uint8_t>> inputs;
  for (const auto& item : std::filesystem::directory_iterator(KVBLEND_FUZZ_CORPUS)) {
    std::ifstream file(item.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(inputs.back().data(), inputs.back().size());
  }
  ASSERT_GE(inputs.size(), size_t{KVBLEND_FUZZ_MIN_FILES});

  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  for (int round = 0; round < KVBLEND_FUZZ_ROUNDS; ++round) {
    std::vector<uint8_t> bytes = inputs[random() % inputs.size()];
    for (auto changes = random() % 5; changes > 0 && !bytes.empty(); --changes) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    switch (random() % 8) {
      case 0:
        bytes.resize(random() % (bytes.size() + 1));
        break;
      case 1:
        bytes.push_back(static_cast<uint8_t>(random()));
        break;
      default:
        break;
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace kvblend::test_support
