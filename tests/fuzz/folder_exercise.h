// What the fuzzers of model folders and of models in parts do with an input, for the tests that replay their
// corpora, too.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/files/hf_folder.h"

namespace kvblend::model {

/// A folder in memory.
class MemoryFolder final : public FolderFiles {
 public:
  explicit MemoryFolder(std::map<std::string, std::string> files);
  absl::StatusOr<absl::Span<const std::byte>> Read(const std::string& file) override;

 private:
  // Blocks of their own, so that AddressSanitizer sees every read past the end.
  std::map<std::string, std::vector<std::byte>> files_;
};

/// Fuzzers get several files in one input: for each a byte that chooses its name, its length in 4 bytes (cut
/// at the input's end), its bytes.
std::string PackFolder(const std::map<std::string, std::string>& files);
std::map<std::string, std::string> UnpackFolder(absl::Span<const std::byte> input);

/// Opens the packed folder and reads rows of its tensors, its fingerprint and its configuration.
absl::Status ExerciseFolder(absl::Span<const std::byte> input);

/// The same of a model in parts: the files in the order of their names.
absl::Status ExerciseParts(absl::Span<const std::byte> input);

/// The same of one safetensors file.
absl::Status ExerciseSafetensors(absl::Span<const std::byte> bytes);

}  // namespace kvblend::model
