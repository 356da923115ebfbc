#include "tests/fuzz/gguf_exercise.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "kernels/backend.h"
#include "tests/fuzz/read_rows.h"

namespace kvblend::model {

absl::Status ExerciseGguf(absl::Span<const std::byte> bytes) {
  const auto file = GgufFile::FromMemory(bytes, "fuzz.gguf");
  if (!file.ok()) return file.status();
  for (const GgufTensor& tensor : file->tensors()) {
    for (const int64_t row : {int64_t{0}, tensor.rows() - 1}) {
      KVBLEND_RETURN_IF_ERROR(ReadWholeRow(tensor, row));
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
