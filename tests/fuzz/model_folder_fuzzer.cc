// libFuzzer target: models in Hugging Face's form (tests/fuzz/folder_exercise.h tells the form of inputs).
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/folder_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)kvblend::model::ExerciseFolder({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
