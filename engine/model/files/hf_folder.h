// A model as Hugging Face's libraries store it: a folder with config.json, model.safetensors (or
// model.safetensors.index.json and the files that it names), tokenizer.json, and optionally
// tokenizer_config.json, generation_config.json and chat_template.jinja. Internal to engine/model: use
// model_file.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// The files of a folder. Used from one thread.
class FolderFiles {
 public:
  virtual ~FolderFiles() = default;
  /// The bytes, which stay as long as this. kNotFound when there is no such file.
  virtual absl::StatusOr<absl::Span<const std::byte>> Read(const std::string& file) = 0;
};

/// Maps the files of the folder at `path` as they are asked for.
std::shared_ptr<FolderFiles> MapFolder(const std::string& path);

/// The folder in the form of a GGUF file: its configuration under GGUF's keys, its tensors under GGUF's
/// names, in the order and with the values that GGUF files have. The bytes of tokenizer.json are the string
/// of the key tokenizer.huggingface.json. `name` stands for the folder in messages; the result owns `files`.
/// Errors are those of gguf_file.h.
absl::StatusOr<GgufFile> PresentFolder(std::shared_ptr<FolderFiles> files, std::string name);

}  // namespace kvblend::model
