#include "tests/fuzz/folder_exercise.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/gguf/gguf_parser.h"
#include "engine/model/gguf/gguf_split.h"
#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "tests/fuzz/read_rows.h"

namespace kvblend::model {
namespace {

constexpr std::array<const char*, 8> kFiles = {
    "config.json",         "model.safetensors",     "model.safetensors.index.json", "model-1.safetensors",
    "model-2.safetensors", "tokenizer_config.json", "generation_config.json",       "tokenizer.json"};

absl::Status ReadSome(const GgufFile& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    for (const int64_t row : {int64_t{0}, tensor.rows() / 2, tensor.rows() - 1}) {
      KVBLEND_RETURN_IF_ERROR(ReadWholeRow(tensor, row));
    }
  }
  if (const auto fingerprint = Fingerprint(file); !fingerprint.ok()) return fingerprint.status();
  return ReadModelConfig(file).status();
}

}  // namespace

MemoryFolder::MemoryFolder(std::map<std::string, std::string> files) {
  for (const auto& [name, text] : files) {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    files_[name].assign(bytes, bytes + text.size());
  }
}

absl::StatusOr<absl::Span<const std::byte>> MemoryFolder::Read(const std::string& file) {
  const auto found = files_.find(file);
  if (found == files_.end()) return absl::NotFoundError("cannot open model file fuzz/" + file);
  return absl::MakeConstSpan(found->second);
}

std::string PackFolder(const std::map<std::string, std::string>& files) {
  std::string packed;
  for (const auto& [name, bytes] : files) {
    const auto found = std::find(kFiles.begin(), kFiles.end(), name);
    if (found == kFiles.end()) continue;
    packed.push_back(static_cast<char>(found - kFiles.begin()));
    const auto size = static_cast<uint32_t>(bytes.size());
    packed.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
  }
  return packed;
}

std::map<std::string, std::string> UnpackFolder(absl::Span<const std::byte> input) {
  std::map<std::string, std::string> files;
  uint32_t size = 0;
  while (input.size() > sizeof(size)) {
    const char* name = kFiles[static_cast<size_t>(input[0]) % kFiles.size()];
    std::memcpy(&size, input.data() + 1, sizeof(size));
    input.remove_prefix(1 + sizeof(size));
    const size_t taken = std::min<size_t>(size, input.size());
    files[name].assign(reinterpret_cast<const char*>(input.data()), taken);
    input.remove_prefix(taken);
  }
  return files;
}

absl::Status ExerciseFolder(absl::Span<const std::byte> input) {
  const auto file = PresentFolder(std::make_shared<MemoryFolder>(UnpackFolder(input)), "fuzz");
  return file.ok() ? ReadSome(*file) : file.status();
}

absl::Status ExerciseParts(absl::Span<const std::byte> input) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<GgufPart> parts;
  for (const auto& [name, text] : UnpackFolder(input)) {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes.emplace_back(begin, begin + text.size());
    KVBLEND_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(bytes.back(), "fuzz-" + name));
    parts.push_back({"fuzz-" + name, std::move(contents)});
  }
  if (parts.empty()) return absl::InvalidArgumentError("fuzz: no parts");
  KVBLEND_ASSIGN_OR_RETURN(GgufContents whole, JoinParts(std::move(parts)));
  return ReadSome(GgufFile::FromContents(std::move(whole), "fuzz", nullptr));
}

absl::Status ExerciseSafetensors(absl::Span<const std::byte> bytes) {
  const auto tensors = ParseSafetensors(bytes, "fuzz.safetensors");
  if (!tensors.ok()) return tensors.status();
  unsigned sum = 0;  // of every byte that a tensor claims
  for (const SafeTensor& tensor : *tensors) {
    for (const std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
  }
  return sum == 1u << 31 ? absl::InternalError("fuzz: a sum that no test reaches") : absl::OkStatus();
}

}  // namespace kvblend::model
