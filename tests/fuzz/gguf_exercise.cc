#include "tests/fuzz/gguf_exercise.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/gguf/dequantize.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "kernels/backend.h"

namespace kvblend::model {

absl::Status ExerciseGguf(absl::Span<const std::byte> bytes) {
  const auto file = GgufFile::FromMemory(bytes, "fuzz.gguf");
  if (!file.ok()) return file.status();
  for (const GgufTensor& tensor : file->tensors()) {
    std::vector<float> row(tensor.cols());
    for (const int64_t index : {int64_t{0}, tensor.rows() - 1}) {
      KVBLEND_RETURN_IF_ERROR(tensor.ReadRow(index, absl::MakeSpan(row)));
      const auto format = tensor.quantized_format();
      if (!format.has_value()) continue;
      std::vector<uint8_t> codes(tensor.cols());
      std::vector<float> scales(tensor.cols() / format->group), minimums(scales.size());
      KVBLEND_RETURN_IF_ERROR(
          tensor.ReadCodes(index, {absl::MakeSpan(codes), absl::MakeSpan(scales), absl::MakeSpan(minimums)}));
    }
  }
  if (const auto fingerprint = Fingerprint(*file); !fingerprint.ok()) return fingerprint.status();
  if (const auto tokenizer = ReadTokenizerSpec(*file); !tokenizer.ok()) return tokenizer.status();
  auto config = ReadModelConfig(*file);
  if (!config.ok()) return config.status();
  config->context_length = std::min(config->context_length, 16);  // a RoPE table may be larger than its file
  const auto backend = kernels::CreateReferenceBackend();
  auto stream = backend->CreateStream();
  if (!stream.ok()) return stream.status();
  return LoadModelWeights(*file, *config, *backend, **stream).status();
}

}  // namespace kvblend::model
