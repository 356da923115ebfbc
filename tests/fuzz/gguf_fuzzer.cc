// libFuzzer target: model files.
//   build/fuzz/bin/gguf_seeds CORPUS && build/fuzz/bin/gguf_fuzzer CORPUS -max_len=8192 -max_total_time=300
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/gguf_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)kvblend::model::ExerciseGguf({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
