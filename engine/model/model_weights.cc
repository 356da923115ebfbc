#include "engine/model/model_weights.h"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "engine/model/gguf_text.h"
#include "engine/model/model_tensors.h"

namespace kvblend::model {
namespace {

using kernels::PackedWeights;
using kernels::WeightUsage;

class Loader {
 public:
  Loader(const GgufFile& file, kernels::Backend& backend, kernels::Stream& stream)
      : file_(file), backend_(backend), stream_(stream) {}

  struct Part {
    std::string name;
    int64_t rows;
  };

  /// The named tensors, one below the other, as one weight matrix.
  absl::Status Pack(absl::Span<const Part> parts, int64_t cols, WeightUsage usage,
                    std::unique_ptr<PackedWeights>& packed);
  absl::Status LoadVector(std::string_view name, int64_t size, std::unique_ptr<kernels::Buffer>& buffer);

 private:
  absl::Status ReadFiniteRow(const GgufTensor& tensor, int64_t row, absl::Span<float> out) const;

  const GgufFile& file_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
};

absl::Status Loader::ReadFiniteRow(const GgufTensor& tensor, int64_t row, absl::Span<float> out) const {
  if (auto status = tensor.ReadRow(row, out); !status.ok()) return status;
  for (const float value : out) {
    if (!std::isfinite(value)) {
      return absl::DataLossError(Concat(file_.name(), ": tensor '", tensor.name, "' holds ", value,
                                        " in row ", row, "; allowed: finite numbers"));
    }
  }
  return absl::OkStatus();
}

absl::Status Loader::Pack(absl::Span<const Part> parts, int64_t cols, WeightUsage usage,
                          std::unique_ptr<PackedWeights>& packed) {
  std::vector<const GgufTensor*> tensors;
  int64_t rows = 0;
  for (const Part& part : parts) {
    const auto tensor = RequireTensor(file_, part.name, part.rows, cols);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*tensor);
    rows += part.rows;
  }
  const auto read_row = [&](int64_t row, absl::Span<float> out) {
    size_t part = 0;
    while (row >= parts[part].rows) row -= parts[part++].rows;
    return ReadFiniteRow(*tensors[part], row, out);
  };
  auto result = backend_.PackWeights(rows, cols, usage, read_row);
  if (!result.ok()) return result.status();
  packed = *std::move(result);
  return absl::OkStatus();
}

absl::Status Loader::LoadVector(std::string_view name, int64_t size,
                                std::unique_ptr<kernels::Buffer>& buffer) {
  const auto tensor = RequireTensor(file_, name, 1, size);
  if (!tensor.ok()) return tensor.status();
  std::vector<float> values(size);
  if (auto status = ReadFiniteRow(**tensor, 0, absl::MakeSpan(values)); !status.ok()) return status;
  const int64_t bytes = size * static_cast<int64_t>(sizeof(float));
  auto allocated = backend_.Allocate(bytes);
  if (!allocated.ok()) return allocated.status();
  buffer = *std::move(allocated);
  if (auto status = backend_.CopyFromHost(stream_, buffer->data(), values.data(), bytes); !status.ok())
    return status;
  return backend_.Synchronize(stream_);  // `values` may still be read until here
}

absl::Status LoadLayer(Loader& loader, const ModelConfig& config, int32_t layer, LayerWeights& weights) {
  const int64_t hidden = config.hidden_dim;
  const int64_t query_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  const auto name = [&](std::string_view part) { return LayerTensorName(layer, part); };
  if (auto status = loader.LoadVector(name("attn_norm"), hidden, weights.attn_norm); !status.ok())
    return status;
  if (auto status = loader.LoadVector(name("ffn_norm"), hidden, weights.ffn_norm); !status.ok())
    return status;
  if (auto status =
          loader.Pack({{name("attn_q"), query_dim}, {name("attn_k"), kv_dim}, {name("attn_v"), kv_dim}},
                      hidden, WeightUsage::kLinear, weights.qkv);
      !status.ok()) {
    return status;
  }
  if (auto status =
          loader.Pack({{name("attn_output"), hidden}}, query_dim, WeightUsage::kLinear, weights.attn_output);
      !status.ok()) {
    return status;
  }
  if (auto status = loader.Pack({{name("ffn_gate"), config.ffn_dim}, {name("ffn_up"), config.ffn_dim}},
                                hidden, WeightUsage::kLinear, weights.gate_up);
      !status.ok()) {
    return status;
  }
  return loader.Pack({{name("ffn_down"), hidden}}, config.ffn_dim, WeightUsage::kLinear, weights.down);
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(const GgufFile& file, const ModelConfig& config,
                                              kernels::Backend& backend, kernels::Stream& stream) {
  Loader loader(file, backend, stream);
  ModelWeights weights;
  if (auto status =
          loader.Pack({{"token_embd.weight", config.vocab_size}}, config.hidden_dim,
                      config.tied_output ? WeightUsage::kLinearAndEmbedding : WeightUsage::kEmbedding,
                      weights.token_embedding);
      !status.ok()) {
    return status;
  }
  if (!config.tied_output) {
    if (auto status = loader.Pack({{"output.weight", config.vocab_size}}, config.hidden_dim,
                                  WeightUsage::kLinear, weights.output);
        !status.ok()) {
      return status;
    }
  }
  if (auto status = loader.LoadVector("output_norm.weight", config.hidden_dim, weights.output_norm);
      !status.ok()) {
    return status;
  }
  weights.layers.resize(config.num_layers);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (auto status = LoadLayer(loader, config, layer, weights.layers[layer]); !status.ok()) return status;
  }
  kernels::RopeSpec rope;
  rope.layout = config.rope_layout;
  rope.head_dim = config.head_dim;
  rope.max_position = config.context_length;
  rope.inv_freq = config.inv_freq;
  auto table = backend.CreateRopeTable(rope);
  if (!table.ok()) return table.status();
  weights.rope = *std::move(table);
  if (auto status = backend.Synchronize(stream); !status.ok()) return status;
  return weights;
}

}  // namespace kvblend::model
