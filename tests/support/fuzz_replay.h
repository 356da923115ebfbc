// Runs a fuzzer's body over its committed corpus and over mutations of it, so that every build has it
// compiled and true.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::test_support {

/// LLVMFuzzerTestOneInput, under another name (CMakeLists.txt of the test).
using Fuzzer = int (*)(const uint8_t* data, size_t size);

/// `corpus`: a folder of tests/fuzz/corpus with at least `min_files` files. A violation aborts.
inline void ReplayCorpusAndMutations(Fuzzer fuzzer, const std::string& corpus, size_t min_files, int rounds) {
  std::vector<std::vector<uint8_t>> inputs;
  for (const auto& item :
       std::filesystem::directory_iterator(KVBLEND_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
    std::ifstream file(item.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    fuzzer(inputs.back().data(), inputs.back().size());
  }
  ASSERT_GE(inputs.size(), min_files);

  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  for (int round = 0; round < rounds; ++round) {
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
    fuzzer(bytes.data(), bytes.size());
  }
}

}  // namespace kvblend::test_support
