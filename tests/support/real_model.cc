#include "tests/support/real_model.h"

#include <cstdlib>

namespace kvblend::test_support {

std::string RealModelPath(const std::string& source_dir) {
  const char* path = std::getenv("KVBLEND_MODEL");
  if (path != nullptr && *path != '\0') return path;
  return source_dir + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace kvblend::test_support
