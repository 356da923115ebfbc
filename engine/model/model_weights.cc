#include "engine/model/model_weights.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/model_tensors.h"
#include "engine/model/weight_sources.h"

namespace kvblend::model {
namespace {

using kernels::PackedWeights;
using kernels::WeightUsage;

/// Puts the elements of Q's or K's heads into the order in which the rows of their weights are taken.
void Reorder(const ModelConfig& config, int64_t num_heads, std::vector<float>& values) {
  const std::vector<int32_t>& order = config.rotation_order;
  if (order.empty()) return;
  const std::vector<float> before = values;
  for (int64_t head = 0; head < num_heads; ++head) {
    const int64_t first = head * config.head_dim;
    for (size_t i = 0; i < order.size(); ++i) values[first + i] = before[first + order[i]];
  }
}

class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config, kernels::Backend& backend, kernels::Stream& stream,
         const LoadProgress& progress)
      : file_(file), config_(config), backend_(backend), stream_(stream), progress_(progress) {
    for (const GgufTensor& tensor : file.tensors()) total_bytes_ += tensor.stored_bytes();
  }

  struct Part {
    std::string name;
    int64_t rows;
  };
  /// For example "ffn_up", with so many rows for each expert.
  struct ExpertPart {
    std::string_view name;
    int64_t rows;
  };

  /// The named tensors, one below the other, as one weight matrix; of the first `rotated_heads` heads, the
  /// rows in the order of config.rotation_order.
  absl::Status Pack(absl::Span<const Part> parts, int64_t cols, WeightUsage usage,
                    std::unique_ptr<PackedWeights>& packed, int64_t rotated_heads = 0);
  /// The same for every expert of a layer.
  absl::Status PackExperts(int32_t layer, absl::Span<const ExpertPart> parts, int64_t cols,
                           std::unique_ptr<kernels::PackedExperts>& packed);
  /// Their biases side by side, a row for each expert.
  absl::Status LoadExpertBiases(int32_t layer, absl::Span<const ExpertPart> parts,
                                std::unique_ptr<kernels::Buffer>& buffer);
  absl::StatusOr<std::vector<float>> ReadVector(std::string_view name, int64_t size);
  absl::Status Upload(const std::vector<float>& values, std::unique_ptr<kernels::Buffer>& buffer);
  absl::Status LoadVector(std::string_view name, int64_t size, std::unique_ptr<kernels::Buffer>& buffer);
  /// To be called when all that is needed has been read.
  void CountEnd() { CountRead(total_bytes_); }
  absl::Status LoadLayer(int32_t layer, LayerWeights& weights);

 private:
  absl::Status LoadAttentionExtras(int32_t layer, LayerWeights& weights);
  absl::Status LoadMlp(int32_t layer, LayerWeights& weights);
  /// For matrices other than Q, K and V: in_others, but in the first and the last layer, whose rounding
  /// changes answers most.
  WeightUsage UsageIn(int32_t layer, WeightUsage in_others) const {
    return layer == 0 || layer + 1 == config_.num_layers ? WeightUsage::kLinear : in_others;
  }
  void CountRead(int64_t bytes) {
    // Bounded, as a matrix that cannot be kept as codes is read twice.
    read_bytes_ = std::min(read_bytes_ + bytes, total_bytes_);
    if (progress_ != nullptr) progress_(read_bytes_, total_bytes_);
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  kernels::Backend& backend_;
  kernels::Stream& stream_;
  const LoadProgress& progress_;
  int64_t read_bytes_ = 0, total_bytes_ = 0;
};

absl::Status Loader::Pack(absl::Span<const Part> parts, int64_t cols, WeightUsage usage,
                          std::unique_ptr<PackedWeights>& packed, int64_t rotated_heads) {
  StackedTensors tensors(file_, [this](int64_t bytes) { CountRead(bytes); });
  int64_t rows = 0;
  for (const Part& part : parts) {
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file_, part.name, part.rows, cols));
    tensors.Add({tensor}, part.rows);
    rows += part.rows;
  }
  const ReorderedHeads reordered(tensors, rotated_heads, config_.rotation_order);
  const bool reorders = rotated_heads > 0 && !config_.rotation_order.empty();
  const kernels::WeightSource& source =
      reorders ? static_cast<const kernels::WeightSource&>(reordered) : tensors;
  KVBLEND_ASSIGN_OR_RETURN(packed, backend_.PackWeights(rows, cols, usage, source));
  tensors.ReleasePages();
  return absl::OkStatus();
}

absl::Status Loader::PackExperts(int32_t layer, absl::Span<const ExpertPart> parts, int64_t cols,
                                 std::unique_ptr<kernels::PackedExperts>& packed) {
  StackedTensors tensors(file_, [this](int64_t bytes) { CountRead(bytes); });
  int64_t rows = 0;
  for (const ExpertPart& part : parts) {
    KVBLEND_ASSIGN_OR_RETURN(std::vector<const GgufTensor*> found,
                             RequireExperts(file_, layer, part.name, part.rows, cols, config_.num_experts));
    tensors.Add(std::move(found), part.rows);
    rows += part.rows;
  }
  KVBLEND_ASSIGN_OR_RETURN(packed, backend_.PackExperts(config_.num_experts, rows, cols, tensors));
  tensors.ReleasePages();
  return absl::OkStatus();
}

absl::Status Loader::LoadExpertBiases(int32_t layer, absl::Span<const ExpertPart> parts,
                                      std::unique_ptr<kernels::Buffer>& buffer) {
  std::vector<const GgufTensor*> tensors;
  int64_t width = 0;
  for (const ExpertPart& part : parts) {
    const std::string name = LayerTensorName(layer, Concat(part.name, "_exps.bias"));
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor,
                             RequireTensor(file_, name, config_.num_experts, part.rows));
    tensors.push_back(tensor);
    width += part.rows;
  }
  std::vector<float> biases(config_.num_experts * width);
  absl::Span<float> rest = absl::MakeSpan(biases);
  for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
    for (const GgufTensor* tensor : tensors) {
      const absl::Span<float> row = rest.first(tensor->cols());
      KVBLEND_RETURN_IF_ERROR(tensor->ReadRow(expert, row));
      KVBLEND_RETURN_IF_ERROR(CheckFinite(file_, *tensor, expert, row));
      rest.remove_prefix(row.size());
    }
  }
  return Upload(biases, buffer);
}

absl::StatusOr<std::vector<float>> Loader::ReadVector(std::string_view name, int64_t size) {
  KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file_, name, 1, size));
  std::vector<float> values(size);
  KVBLEND_RETURN_IF_ERROR(tensor->ReadRow(0, absl::MakeSpan(values)));
  KVBLEND_RETURN_IF_ERROR(CheckFinite(file_, *tensor, 0, values));
  return values;
}

absl::Status Loader::Upload(const std::vector<float>& values, std::unique_ptr<kernels::Buffer>& buffer) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(float));
  KVBLEND_ASSIGN_OR_RETURN(buffer, backend_.Allocate(bytes));
  KVBLEND_RETURN_IF_ERROR(backend_.CopyFromHost(stream_, buffer->data(), values.data(), bytes));
  return backend_.Synchronize(stream_);  // `values` may still be read until here
}

absl::Status Loader::LoadVector(std::string_view name, int64_t size,
                                std::unique_ptr<kernels::Buffer>& buffer) {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> values, ReadVector(name, size));
  return Upload(values, buffer);
}

absl::Status Loader::LoadAttentionExtras(int32_t layer, LayerWeights& weights) {
  const int64_t head_dim = config_.head_dim;
  const auto name = [&](std::string_view part) { return LayerTensorName(layer, part); };
  if (config_.has_qkv_bias) {
    std::vector<float> bias;
    for (const auto& [part, heads, rotates] : {std::tuple{"attn_q.bias", config_.num_heads, true},
                                               {"attn_k.bias", config_.num_kv_heads, true},
                                               {"attn_v.bias", config_.num_kv_heads, false}}) {
      KVBLEND_ASSIGN_OR_RETURN(std::vector<float> values, ReadVector(name(part), heads * head_dim));
      if (rotates) Reorder(config_, heads, values);
      bias.insert(bias.end(), values.begin(), values.end());
    }
    KVBLEND_RETURN_IF_ERROR(Upload(bias, weights.qkv_bias));
  }
  if (config_.architecture->qk_norm) {
    for (const auto& [part, buffer] :
         {std::pair{"attn_q_norm.weight", &weights.q_norm}, {"attn_k_norm.weight", &weights.k_norm}}) {
      KVBLEND_ASSIGN_OR_RETURN(std::vector<float> values, ReadVector(name(part), head_dim));
      Reorder(config_, 1, values);
      KVBLEND_RETURN_IF_ERROR(Upload(values, *buffer));
    }
  }
  if (config_.architecture->attention_sinks) {
    KVBLEND_RETURN_IF_ERROR(LoadVector(name("attn_sinks.weight"), config_.num_heads, weights.attn_sinks));
  }
  if (!config_.has_output_bias) return absl::OkStatus();
  return LoadVector(name("attn_output.bias"), config_.hidden_dim, weights.attn_output_bias);
}

absl::Status Loader::LoadMlp(int32_t layer, LayerWeights& weights) {
  const int64_t hidden = config_.hidden_dim, ffn = config_.ffn_dim;
  const auto name = [&](std::string_view part) { return LayerTensorName(layer, part); };
  if (config_.num_experts > 0) {
    KVBLEND_RETURN_IF_ERROR(Pack({{name("ffn_gate_inp.weight"), config_.num_experts}}, hidden,
                                 WeightUsage::kLinear, weights.router));
    const std::vector<ExpertPart> gate_up = {{"ffn_gate", ffn}, {"ffn_up", ffn}},
                                  down = {{"ffn_down", hidden}};
    KVBLEND_RETURN_IF_ERROR(PackExperts(layer, gate_up, hidden, weights.expert_gate_up));
    KVBLEND_RETURN_IF_ERROR(PackExperts(layer, down, ffn, weights.expert_down));
    if (!config_.architecture->expert_biases) return absl::OkStatus();
    KVBLEND_RETURN_IF_ERROR(LoadVector(name("ffn_gate_inp.bias"), config_.num_experts, weights.router_bias));
    KVBLEND_RETURN_IF_ERROR(LoadExpertBiases(layer, gate_up, weights.expert_gate_up_bias));
    return LoadExpertBiases(layer, down, weights.expert_down_bias);
  }
  std::vector<Part> gate_up = {{name("ffn_gate.weight"), ffn}, {name("ffn_up.weight"), ffn}};
  if (config_.architecture->fused_tensors) gate_up = {{name("ffn_up.weight"), 2 * ffn}};
  KVBLEND_RETURN_IF_ERROR(
      Pack(gate_up, hidden, UsageIn(layer, WeightUsage::kVeryTolerantLinear), weights.gate_up));
  return Pack({{name("ffn_down.weight"), hidden}}, ffn, UsageIn(layer, WeightUsage::kTolerantLinear),
              weights.down);
}

absl::Status Loader::LoadLayer(int32_t layer, LayerWeights& weights) {
  const int64_t hidden = config_.hidden_dim;
  const int64_t query_dim = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_dim = int64_t{config_.num_kv_heads} * config_.head_dim;
  const auto name = [&](std::string_view part) { return LayerTensorName(layer, part); };
  std::vector<Part> qkv = {
      {name("attn_q.weight"), query_dim}, {name("attn_k.weight"), kv_dim}, {name("attn_v.weight"), kv_dim}};
  if (config_.architecture->fused_tensors) qkv = {{name("attn_qkv.weight"), query_dim + 2 * kv_dim}};
  KVBLEND_RETURN_IF_ERROR(LoadVector(name("attn_norm.weight"), hidden, weights.attn_norm));
  KVBLEND_RETURN_IF_ERROR(LoadVector(name(config_.architecture->ffn_norm), hidden, weights.ffn_norm));
  KVBLEND_RETURN_IF_ERROR(Pack(qkv, hidden, WeightUsage::kLinear, weights.qkv,
                               /*rotated_heads=*/config_.num_heads + config_.num_kv_heads));
  KVBLEND_RETURN_IF_ERROR(LoadAttentionExtras(layer, weights));
  KVBLEND_RETURN_IF_ERROR(Pack({{name("attn_output.weight"), hidden}}, query_dim,
                               UsageIn(layer, WeightUsage::kVeryTolerantLinear), weights.attn_output));
  KVBLEND_RETURN_IF_ERROR(LoadMlp(layer, weights));
  if (!config_.architecture->post_norms) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(
      LoadVector(name("post_attention_norm.weight"), hidden, weights.post_attention_norm));
  return LoadVector(name("post_ffw_norm.weight"), hidden, weights.post_ffw_norm);
}

}  // namespace

absl::StatusOr<ModelWeights> LoadModelWeights(const GgufFile& file, const ModelConfig& config,
                                              kernels::Backend& backend, kernels::Stream& stream,
                                              const LoadProgress& progress) {
  Loader loader(file, config, backend, stream, progress);
  ModelWeights weights;
  KVBLEND_RETURN_IF_ERROR(
      loader.Pack({{"token_embd.weight", config.vocab_size}}, config.hidden_dim,
                  config.tied_output ? WeightUsage::kLinearAndEmbedding : WeightUsage::kEmbedding,
                  weights.token_embedding));
  if (!config.tied_output) {
    KVBLEND_RETURN_IF_ERROR(loader.Pack({{"output.weight", config.vocab_size}}, config.hidden_dim,
                                        WeightUsage::kLinear, weights.output));
  }
  KVBLEND_ASSIGN_OR_RETURN(std::vector<float> output_norm,
                           loader.ReadVector("output_norm.weight", config.hidden_dim));
  for (float& value : output_norm) value *= config.logit_scale;
  KVBLEND_RETURN_IF_ERROR(loader.Upload(output_norm, weights.output_norm));
  weights.layers.resize(config.num_layers);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(loader.LoadLayer(layer, weights.layers[layer]));
  }
  for (const RopeConfig& rope : config.ropes) {
    KVBLEND_ASSIGN_OR_RETURN(auto table,
                             backend.CreateRopeTable(config.RopeSpecOf(rope, config.context_length)));
    weights.ropes.push_back(std::move(table));
  }
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
  loader.CountEnd();
  // Once more: reading a tensor may have brought back the end of the one before it, huge pages and all.
  for (const GgufTensor& tensor : file.tensors()) tensor.ReleasePages();
  return weights;
}

int64_t ModelWeights::max_rows_together(const ModelConfig& config) const {
  int64_t rows = output_layer().rows_as_alone();
  for (const LayerWeights& layer : layers) {
    for (const kernels::PackedWeights* weights :
         {layer.qkv.get(), layer.attn_output.get(), layer.gate_up.get(), layer.down.get()}) {
      if (weights != nullptr) rows = std::min(rows, weights->rows_as_alone());
    }
    if (layer.router != nullptr) {
      rows = std::min(rows, std::max(layer.router->rows_as_alone(), kMaxRowsRoutedAsAlone));
    }
    for (const kernels::PackedExperts* experts : {layer.expert_gate_up.get(), layer.expert_down.get()}) {
      if (experts != nullptr) rows = std::min(rows, experts->rows_as_alone() / config.num_used_experts);
    }
  }
  return rows == 0 ? std::numeric_limits<int64_t>::max() : rows;
}

}  // namespace kvblend::model
