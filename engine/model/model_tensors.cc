#include "engine/model/model_tensors.h"

#include <array>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

std::string ExpectedShape(int64_t rows, int64_t cols, int64_t experts) {
  if (experts > 0) return Concat("[", cols, ", ", rows, ", ", experts, "]");
  return rows == 1 ? Concat("[", cols, "]") : Concat("[", cols, ", ", rows, "]");
}

}  // namespace

std::string LayerTensorName(int32_t layer, std::string_view part) { return Concat("blk.", layer, ".", part); }

absl::StatusOr<const GgufTensor*> RequireTensor(const GgufFile& file, std::string_view name, int64_t rows,
                                                int64_t cols, int64_t experts) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(Concat(file.name(), ": tensor '", name, "' is missing; expected shape ",
                                             ExpectedShape(rows, cols, experts)));
  }
  const bool fits = experts > 0
                        ? tensor->dims.size() == 3 && tensor->dims[1] == rows && tensor->dims[2] == experts
                        : tensor->dims.size() <= 2 && tensor->rows() == rows;
  if (!fits || tensor->cols() != cols) {
    return absl::InvalidArgumentError(
        Concat(file.name(), ": tensor '", name, "' has shape ", tensor->ShapeString(),
               "; allowed: ", ExpectedShape(rows, cols, experts), " (row length first)"));
  }
  return tensor;
}

absl::StatusOr<std::vector<const GgufTensor*>> RequireExperts(const GgufFile& file, int32_t layer,
                                                              std::string_view part, int64_t rows,
                                                              int64_t cols, int64_t experts) {
  const std::string joint = LayerTensorName(layer, Concat(part, "_exps.weight"));
  const auto of_one = [&](int64_t expert) {
    return LayerTensorName(layer, Concat(part, ".", expert, ".weight"));
  };
  std::vector<const GgufTensor*> tensors;
  if (file.FindTensor(joint) != nullptr || file.FindTensor(of_one(0)) == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file, joint, rows, cols, experts));
    tensors.push_back(tensor);
    return tensors;
  }
  for (int64_t expert = 0; expert < experts; ++expert) {
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file, of_one(expert), rows, cols));
    tensors.push_back(tensor);
  }
  return tensors;
}

absl::Status CheckTensors(const GgufFile& file, const ModelConfig& config) {
  const Architecture& architecture = *config.architecture;
  absl::flat_hash_set<std::string> expected;
  absl::Status status;
  const auto expect = [&](std::string name, int64_t rows, int64_t cols, int64_t experts = 0) {
    if (status.ok()) status = RequireTensor(file, name, rows, cols, experts).status();
    expected.insert(std::move(name));
  };
  const auto experts = [&](int32_t layer, std::string_view part, int64_t rows, int64_t cols) {
    if (!status.ok()) return;
    const auto found = RequireExperts(file, layer, part, rows, cols, config.num_experts);
    status = found.status();
    if (!found.ok()) return;
    for (const GgufTensor* tensor : *found) expected.insert(std::string(tensor->name));
  };
  const int64_t hidden = config.hidden_dim, head_dim = config.head_dim, ffn = config.ffn_dim;
  const int64_t query_dim = config.num_heads * head_dim, kv_dim = config.num_kv_heads * head_dim;
  expect("token_embd.weight", config.vocab_size, hidden);
  expect("output_norm.weight", 1, hidden);
  if (!config.tied_output) expect("output.weight", config.vocab_size, hidden);
  // Their shapes are checked where they are read.
  expected.insert("rope_freqs.weight");
  if (architecture.reads_long_rope)
    expected.insert({"rope_factors_long.weight", "rope_factors_short.weight"});
  for (int32_t layer = 0; layer < config.num_layers && status.ok(); ++layer) {
    const auto part = [&](std::string_view name, int64_t rows, int64_t cols, int64_t experts = 0) {
      expect(LayerTensorName(layer, name), rows, cols, experts);
    };
    part("attn_norm.weight", 1, hidden);
    if (architecture.fused_tensors) {
      part("attn_qkv.weight", query_dim + 2 * kv_dim, hidden);
    } else {
      part("attn_q.weight", query_dim, hidden);
      part("attn_k.weight", kv_dim, hidden);
      part("attn_v.weight", kv_dim, hidden);
    }
    if (config.has_qkv_bias) {
      part("attn_q.bias", 1, query_dim);
      part("attn_k.bias", 1, kv_dim);
      part("attn_v.bias", 1, kv_dim);
    }
    if (architecture.qk_norm) {
      part("attn_q_norm.weight", 1, head_dim);
      part("attn_k_norm.weight", 1, head_dim);
    }
    part("attn_output.weight", hidden, query_dim);
    if (config.has_output_bias) part("attn_output.bias", 1, hidden);
    if (architecture.attention_sinks) part("attn_sinks.weight", 1, config.num_heads);
    part(architecture.ffn_norm, 1, hidden);
    if (config.num_experts > 0) {
      part("ffn_gate_inp.weight", config.num_experts, hidden);
      experts(layer, "ffn_gate", ffn, hidden);
      experts(layer, "ffn_up", ffn, hidden);
      experts(layer, "ffn_down", hidden, ffn);
      if (architecture.expert_biases) {
        part("ffn_gate_inp.bias", 1, config.num_experts);
        part("ffn_gate_exps.bias", config.num_experts, ffn);
        part("ffn_up_exps.bias", config.num_experts, ffn);
        part("ffn_down_exps.bias", config.num_experts, hidden);
      }
    } else {
      if (!architecture.fused_tensors) part("ffn_gate.weight", ffn, hidden);
      part("ffn_up.weight", architecture.fused_tensors ? 2 * ffn : ffn, hidden);
      part("ffn_down.weight", hidden, ffn);
    }
    if (architecture.post_norms) {
      part("post_attention_norm.weight", 1, hidden);
      part("post_ffw_norm.weight", 1, hidden);
    }
  }
  if (!status.ok()) return status;
  for (const GgufTensor& tensor : file.tensors()) {
    if (expected.contains(std::string(tensor.name))) continue;
    return absl::UnimplementedError(Concat(file.name(), ": tensor '", tensor.name, "' is not part of the ",
                                           architecture.name, " architecture that kvblend implements",
                                           tensor.name.ends_with(".bias") ? ": it is a bias" : ""));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
