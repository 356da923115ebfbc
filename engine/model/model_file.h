// Opens a model, whatever form it comes in.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// The model at `path`: a GGUF file, the first of several parts of one, or a folder in Hugging Face's form
/// (config.json, safetensors, tokenizer.json), which is presented as a GGUF file of the same model would be.
/// Errors are those of gguf_file.h. Thread-safe.
absl::StatusOr<GgufFile> OpenModel(const std::string& path);

}  // namespace kvblend::model
