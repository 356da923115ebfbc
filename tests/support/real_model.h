// The model that integration tests run on.
#pragma once

#include <cstdlib>
#include <string>

namespace kvblend::test_support {

/// $KVBLEND_MODEL, or models/SmolLM2-135M-Instruct.Q4_1.gguf under `source_dir`, where deploy/fetch_model.sh
/// puts it.
inline std::string RealModelPath(const std::string& source_dir) {
  const char* path = std::getenv("KVBLEND_MODEL");
  if (path != nullptr && *path != '\0') return path;
  return source_dir + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

/// What to tell someone whose model cannot be opened.
inline constexpr char kFetchModelHint[] =
    "run deploy/fetch_model.sh, or set KVBLEND_MODEL to the model it fetches";

}  // namespace kvblend::test_support
