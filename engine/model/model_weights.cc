#include "engine/model/model_weights.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/dequantize.h"
#include "engine/model/gguf_text.h"
#include "engine/model/model_tensors.h"

namespace kvblend::model {
namespace {

using kernels::PackedWeights;
using kernels::WeightUsage;

absl::Status CheckFinite(const GgufFile& file, const GgufTensor& tensor, int64_t row,
                         absl::Span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return absl::DataLossError(Concat(file.name(), ": tensor '", tensor.name, "' holds ", value, " in row ",
                                        row, "; allowed: finite numbers"));
    }
  }
  return absl::OkStatus();
}

/// Tensors of as many columns, one below the other.
class StackedTensors final : public kernels::WeightSource {
 public:
  explicit StackedTensors(const GgufFile& file) : file_(file) {}

  void Add(const GgufTensor& tensor) { tensors_.push_back(&tensor); }

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    const GgufTensor& tensor = Find(&row);
    KVBLEND_RETURN_IF_ERROR(tensor.ReadRow(row, out));
    return CheckFinite(file_, tensor, row, out);
  }
  std::optional<kernels::QuantizedFormat> FormatOf(int64_t row) const override {
    return QuantizedFormatOf(Find(&row).type);
  }
  absl::Status ReadCodes(int64_t row, const kernels::QuantizedRow& out) const override {
    const GgufTensor& tensor = Find(&row);
    KVBLEND_RETURN_IF_ERROR(tensor.ReadCodes(row, out));
    KVBLEND_RETURN_IF_ERROR(CheckFinite(file_, tensor, row, out.scales));
    return CheckFinite(file_, tensor, row, out.minimums);
  }

 private:
  /// The tensor that holds the row; *row becomes its row there.
  const GgufTensor& Find(int64_t* row) const {
    size_t index = 0;
    while (*row >= tensors_[index]->rows()) *row -= tensors_[index++]->rows();
    return *tensors_[index];
  }

  const GgufFile& file_;
  std::vector<const GgufTensor*> tensors_;
};

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
  const GgufFile& file_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
};

absl::Status Loader::Pack(absl::Span<const Part> parts, int64_t cols, WeightUsage usage,
                          std::unique_ptr<PackedWeights>& packed) {
  StackedTensors tensors(file_);
  int64_t rows = 0;
  for (const Part& part : parts) {
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file_, part.name, part.rows, cols));
    tensors.Add(*tensor);
    rows += part.rows;
  }
  KVBLEND_ASSIGN_OR_RETURN(packed, backend_.PackWeights(rows, cols, usage, tensors));
  return absl::OkStatus();
}

absl::Status Loader::LoadVector(std::string_view name, int64_t size,
                                std::unique_ptr<kernels::Buffer>& buffer) {
  KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file_, name, 1, size));
  std::vector<float> values(size);
  KVBLEND_RETURN_IF_ERROR(tensor->ReadRow(0, absl::MakeSpan(values)));
  KVBLEND_RETURN_IF_ERROR(CheckFinite(file_, *tensor, 0, values));
  const int64_t bytes = size * static_cast<int64_t>(sizeof(float));
  KVBLEND_ASSIGN_OR_RETURN(buffer, backend_.Allocate(bytes));
  KVBLEND_RETURN_IF_ERROR(backend_.CopyFromHost(stream_, buffer->data(), values.data(), bytes));
  return backend_.Synchronize(stream_);  // `values` may still be read until here
}

absl::Status LoadLayer(Loader& loader, const ModelConfig& config, int32_t layer, LayerWeights& weights) {
  const int64_t hidden = config.hidden_dim;
  const int64_t query_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  const auto name = [&](std::string_view part) { return LayerTensorName(layer, part); };
  KVBLEND_RETURN_IF_ERROR(loader.LoadVector(name("attn_norm"), hidden, weights.attn_norm));
  KVBLEND_RETURN_IF_ERROR(loader.LoadVector(name("ffn_norm"), hidden, weights.ffn_norm));
  KVBLEND_RETURN_IF_ERROR(
      loader.Pack({{name("attn_q"), query_dim}, {name("attn_k"), kv_dim}, {name("attn_v"), kv_dim}}, hidden,
                  WeightUsage::kLinear, weights.qkv));
  KVBLEND_RETURN_IF_ERROR(
      loader.Pack({{name("attn_output"), hidden}}, query_dim, WeightUsage::kLinear, weights.attn_output));
  KVBLEND_RETURN_IF_ERROR(loader.Pack({{name("ffn_gate"), config.ffn_dim}, {name("ffn_up"), config.ffn_dim}},
                                      hidden, WeightUsage::kLinear, weights.gate_up));
  return loader.Pack({{name("ffn_down"), hidden}}, config.ffn_dim, WeightUsage::kLinear, weights.down);
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(const GgufFile& file, const ModelConfig& config,
                                              kernels::Backend& backend, kernels::Stream& stream) {
  Loader loader(file, backend, stream);
  ModelWeights weights;
  KVBLEND_RETURN_IF_ERROR(
      loader.Pack({{"token_embd.weight", config.vocab_size}}, config.hidden_dim,
                  config.tied_output ? WeightUsage::kLinearAndEmbedding : WeightUsage::kEmbedding,
                  weights.token_embedding));
  if (!config.tied_output) {
    KVBLEND_RETURN_IF_ERROR(loader.Pack({{"output.weight", config.vocab_size}}, config.hidden_dim,
                                        WeightUsage::kLinear, weights.output));
  }
  KVBLEND_RETURN_IF_ERROR(loader.LoadVector("output_norm.weight", config.hidden_dim, weights.output_norm));
  weights.layers.resize(config.num_layers);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(LoadLayer(loader, config, layer, weights.layers[layer]));
  }
  kernels::RopeSpec rope;
  rope.layout = config.rope_layout;
  rope.head_dim = config.head_dim;
  rope.max_position = config.context_length;
  rope.inv_freq = config.inv_freq;
  KVBLEND_ASSIGN_OR_RETURN(weights.rope, backend.CreateRopeTable(rope));
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
  return weights;
}

}  // namespace kvblend::model
