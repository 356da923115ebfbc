// libFuzzer target: safetensors files.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/folder_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)kvblend::model::ExerciseSafetensors({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
