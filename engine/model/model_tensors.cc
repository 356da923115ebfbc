#include "engine/model/model_tensors.h"

#include <array>

#include "absl/container/flat_hash_set.h"
#include "engine/model/gguf_text.h"

namespace kvblend::model {
namespace {

std::string ExpectedShape(int64_t rows, int64_t cols) {
  return rows == 1 ? Concat("[", cols, "]") : Concat("[", cols, ", ", rows, "]");
}

}  // namespace

std::string LayerTensorName(int32_t layer, std::string_view part) {
  return Concat("blk.", layer, ".", part, ".weight");
}

absl::StatusOr<const GgufTensor*> RequireTensor(const GgufFile& file, std::string_view name, int64_t rows,
                                                int64_t cols) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        Concat(file.name(), ": tensor '", name, "' is missing; expected shape ", ExpectedShape(rows, cols)));
  }
  if (tensor->dims.size() > 2 || tensor->cols() != cols || tensor->rows() != rows) {
    return absl::InvalidArgumentError(Concat(file.name(), ": tensor '", name, "' has shape ",
                                             tensor->ShapeString(), "; allowed: ", ExpectedShape(rows, cols),
                                             " (row length first)"));
  }
  return tensor;
}

absl::Status CheckTensors(const GgufFile& file, const ModelConfig& config) {
  absl::flat_hash_set<std::string> expected;
  absl::Status status;
  const auto expect = [&](std::string name, int64_t rows, int64_t cols) {
    if (status.ok()) status = RequireTensor(file, name, rows, cols).status();
    expected.insert(std::move(name));
  };
  expect("token_embd.weight", config.vocab_size, config.hidden_dim);
  expect("output_norm.weight", 1, config.hidden_dim);
  if (!config.tied_output) expect("output.weight", config.vocab_size, config.hidden_dim);
  if (file.FindTensor("rope_freqs.weight") != nullptr) expect("rope_freqs.weight", 1, config.head_dim / 2);
  const int64_t query_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  for (int32_t layer = 0; layer < config.num_layers && status.ok(); ++layer) {
    expect(LayerTensorName(layer, "attn_norm"), 1, config.hidden_dim);
    expect(LayerTensorName(layer, "attn_q"), query_dim, config.hidden_dim);
    expect(LayerTensorName(layer, "attn_k"), kv_dim, config.hidden_dim);
    expect(LayerTensorName(layer, "attn_v"), kv_dim, config.hidden_dim);
    expect(LayerTensorName(layer, "attn_output"), config.hidden_dim, query_dim);
    expect(LayerTensorName(layer, "ffn_norm"), 1, config.hidden_dim);
    expect(LayerTensorName(layer, "ffn_gate"), config.ffn_dim, config.hidden_dim);
    expect(LayerTensorName(layer, "ffn_up"), config.ffn_dim, config.hidden_dim);
    expect(LayerTensorName(layer, "ffn_down"), config.hidden_dim, config.ffn_dim);
  }
  if (!status.ok()) return status;
  for (const GgufTensor& tensor : file.tensors()) {
    if (expected.contains(std::string(tensor.name))) continue;
    return absl::UnimplementedError(Concat(
        file.name(), ": tensor '", tensor.name, "' ",
        tensor.name.ends_with(".bias") ? "is a bias, which is not implemented for the llama architecture"
                                       : "is not part of the llama architecture that kvblend implements"));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
