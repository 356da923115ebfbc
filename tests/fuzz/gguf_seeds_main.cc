// gguf_seeds FOLDER: writes the GGUF fuzzer's first inputs.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/gguf_seeds.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gguf_seeds FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : kvblend::test_support::GgufSeeds()) {
    std::ofstream file(folder / ("seed_" + std::to_string(number++) + ".gguf"), std::ios::binary);
    file.write(seed.data(), static_cast<std::streamsize>(seed.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "gguf_seeds: cannot write to %s\n", folder.c_str());
      return 1;
    }
  }
  std::printf("%d files in %s\n", number, folder.c_str());
  return 0;
}
