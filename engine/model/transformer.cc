#include "engine/model/transformer.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvblend::model {
namespace {

using kernels::ConstMatrixView;
using kernels::DataType;
using kernels::MatrixView;

ConstMatrixView OneRow(const kernels::Buffer& buffer, int64_t dim) {
  return {buffer.data(), DataType::kF32, 1, dim, dim};
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const ModelWeights& weights, kernels::Backend& backend)
    : config_(config), weights_(weights), backend_(backend), row_tile_(backend.row_units().products) {}

MatrixView Transformer::Queries(const PassState& state) const {
  return state.qkv.Columns(0, int64_t{config_.num_heads} * config_.head_dim);
}

MatrixView Transformer::Keys(const PassState& state) const {
  const int64_t kv_dim = int64_t{config_.num_kv_heads} * config_.head_dim;
  return state.qkv.Columns(int64_t{config_.num_heads} * config_.head_dim, kv_dim);
}

MatrixView Transformer::KeysAndValues(const PassState& state) const {
  const int64_t kv_dim = int64_t{config_.num_kv_heads} * config_.head_dim;
  return state.qkv.Columns(int64_t{config_.num_heads} * config_.head_dim, 2 * kv_dim);
}

MatrixView Transformer::Values(const PassState& state) const {
  const int64_t kv_dim = int64_t{config_.num_kv_heads} * config_.head_dim;
  return state.qkv.Columns(int64_t{config_.num_heads} * config_.head_dim + kv_dim, kv_dim);
}

kernels::AttentionSpec Transformer::attention(int32_t layer) const {
  const kernels::Buffer* sinks = weights_.layers[layer].attn_sinks.get();
  return {.num_heads = config_.num_heads,
          .scale = config_.attention_scale,
          .sliding_window = config_.layers[layer].sliding_window,
          .logit_soft_cap = config_.attention_soft_cap,
          .sinks = sinks == nullptr ? ConstMatrixView{} : OneRow(*sinks, config_.num_heads)};
}

absl::Status Transformer::Begin(kernels::Stream& stream, absl::Span<const int32_t> token_ids,
                                PassState& state) const {
  KVBLEND_ASSIGN_OR_RETURN(state.hidden, state.hidden_storage.Resize(backend_, token_ids.size(),
                                                                     config_.hidden_dim, DataType::kF32));
  return backend_.Embed(stream, *weights_.token_embedding, token_ids, config_.embedding_scale, state.hidden);
}

absl::Status Transformer::ProjectQkv(kernels::Stream& stream, int32_t layer, PassState& state) const {
  for (int32_t tile = 0; tile < NumTiles(state.hidden.rows); ++tile) {
    KVBLEND_RETURN_IF_ERROR(ProjectQkvTile(stream, layer, tile, state));
  }
  return absl::OkStatus();
}

absl::Status Transformer::ProjectQkvTile(kernels::Stream& stream, int32_t layer, int32_t tile,
                                         PassState& state) const {
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t rows = state.hidden.rows, begin = tile * row_tile_, count = std::min(row_tile_, rows - begin);
  if (tile == 0) {
    KVBLEND_ASSIGN_OR_RETURN(state.qkv,
                             state.qkv_storage.Resize(backend_, rows, weights.qkv->rows(), DataType::kF32));
  }
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView normed,
      state.normed.Resize(backend_, std::min(rows, row_tile_), config_.hidden_dim, backend_.compute_dtype()));
  const MatrixView qkv = state.qkv.Rows(begin, count);
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(stream, state.hidden.Rows(begin, count),
                                           OneRow(*weights.attn_norm, config_.hidden_dim),
                                           config_.rms_epsilon, normed.Rows(0, count)));
  KVBLEND_RETURN_IF_ERROR(
      backend_.Linear(stream, normed.Rows(0, count), *weights.qkv, /*accumulate=*/false, qkv));
  if (weights.qkv_bias != nullptr) {
    KVBLEND_RETURN_IF_ERROR(backend_.AddScaled(stream, OneRow(*weights.qkv_bias, qkv.cols), 1.0f, qkv));
  }
  if (weights.q_norm == nullptr) return absl::OkStatus();
  const int64_t query_dim = int64_t{config_.num_heads} * config_.head_dim;
  const MatrixView queries = qkv.Columns(0, query_dim),
                   keys = qkv.Columns(query_dim, int64_t{config_.num_kv_heads} * config_.head_dim);
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(stream, queries, OneRow(*weights.q_norm, config_.head_dim),
                                           config_.rms_epsilon, queries));
  return backend_.RmsNorm(stream, keys, OneRow(*weights.k_norm, config_.head_dim), config_.rms_epsilon, keys);
}

absl::Status Transformer::WriteKv(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                                  const PassState& state, kernels::KvPagesView pages) const {
  return backend_.KvScatter(stream, plan, rope(layer), Keys(state), Values(state), pages);
}

absl::Status Transformer::RotateQueries(kernels::Stream& stream, int32_t layer,
                                        const kernels::BatchPlan& plan, PassState& state) const {
  return backend_.Rope(stream, plan, rope(layer), config_.num_heads, Queries(state));
}

absl::Status Transformer::Attend(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                                 int64_t first_row, kernels::KvPagesView pages, PassState& state,
                                 std::optional<MatrixView> mass) const {
  const kernels::AttentionSpec spec = attention(layer);
  if (first_row == 0) {
    KVBLEND_ASSIGN_OR_RETURN(
        state.attended,
        state.attention.Resize(backend_, state.hidden.rows, int64_t{config_.num_heads} * config_.head_dim,
                               backend_.compute_dtype()));
  }
  const int64_t count = plan.num_rows();
  const MatrixView queries = Queries(state).Rows(first_row, count),
                   attended = state.attended.Rows(first_row, count);
  if (mass.has_value()) {
    return backend_.SelectiveAttentionWithMass(stream, plan, queries, spec, pages, attended, *mass);
  }
  return backend_.SelectiveAttention(stream, plan, queries, spec, pages, attended);
}

absl::Status Transformer::AttendAndMlp(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                                       kernels::KvPagesView pages, PassState& state,
                                       std::optional<MatrixView> mass) const {
  KVBLEND_RETURN_IF_ERROR(Attend(stream, layer, plan, /*first_row=*/0, pages, state, mass));
  for (int32_t tile = 0; tile < NumTiles(state.hidden.rows); ++tile) {
    KVBLEND_RETURN_IF_ERROR(OutputAndMlpTile(stream, layer, tile, state));
  }
  return absl::OkStatus();
}

absl::Status Transformer::ProjectOutput(kernels::Stream& stream, int32_t layer, ConstMatrixView x,
                                        bool accumulate, MatrixView out) const {
  return backend_.Linear(stream, x, *weights_.layers[layer].attn_output, accumulate, out);
}

absl::Status Transformer::OutputAndMlpTile(kernels::Stream& stream, int32_t layer, int32_t tile,
                                           PassState& state) const {
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t rows = state.hidden.rows, largest = std::min(rows, row_tile_), begin = tile * row_tile_,
                count = std::min(row_tile_, rows - begin);
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView normed, state.normed.Resize(backend_, largest, config_.hidden_dim,
                                                                        backend_.compute_dtype()));
  const MatrixView hidden = state.hidden.Rows(begin, count), input = normed.Rows(0, count);
  KVBLEND_RETURN_IF_ERROR(AddBranch(
      stream,
      [&](bool accumulate, MatrixView out) {
        return ProjectOutput(stream, layer, state.attended.Rows(begin, count), accumulate, out);
      },
      weights.attn_output_bias.get(), weights.post_attention_norm.get(), state, hidden));
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(stream, hidden, OneRow(*weights.ffn_norm, config_.hidden_dim),
                                           config_.rms_epsilon, input));
  return weights.router == nullptr ? AddMlp(stream, weights, input, state, hidden)
                                   : AddExperts(stream, weights, input, state, hidden);
}

absl::Status Transformer::Activate(kernels::Stream& stream, MatrixView both, MatrixView activated) const {
  return backend_.GatedActivation(stream, config_.architecture->activation, both.Columns(0, config_.ffn_dim),
                                  both.Columns(config_.ffn_dim, config_.ffn_dim), activated);
}

absl::Status Transformer::AddMlp(kernels::Stream& stream, const LayerWeights& weights, ConstMatrixView normed,
                                 PassState& state, MatrixView hidden) const {
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView both,
      state.gate_up.Resize(backend_, normed.rows, 2 * int64_t{config_.ffn_dim}, DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView activated,
      state.activated.Resize(backend_, normed.rows, config_.ffn_dim, backend_.compute_dtype()));
  KVBLEND_RETURN_IF_ERROR(backend_.GatedLinear(stream, normed, *weights.gate_up,
                                               config_.architecture->activation, both, activated));
  return AddBranch(
      stream,
      [&](bool accumulate, MatrixView out) {
        return backend_.Linear(stream, activated, *weights.down, accumulate, out);
      },
      /*bias=*/nullptr, weights.post_ffw_norm.get(), state, hidden);
}

absl::Status Transformer::MultiplyExperts(kernels::Stream& stream, ConstMatrixView x,
                                          const kernels::PackedExperts& weights, const kernels::Buffer* bias,
                                          kernels::IndicesView experts, MatrixView out) const {
  KVBLEND_RETURN_IF_ERROR(backend_.ExpertLinear(stream, x, weights, experts, out));
  if (bias == nullptr) return absl::OkStatus();
  const ConstMatrixView biases{bias->data(), DataType::kF32, weights.num_experts(), out.cols, out.cols};
  return backend_.AddExpertBias(stream, biases, experts, out);
}

absl::Status Transformer::Route(kernels::Stream& stream, const LayerWeights& weights, ConstMatrixView normed,
                                MatrixView logits) const {
  const int64_t rows = normed.rows, alone = weights.router->rows_as_alone();
  const bool as_alone = alone > 0 && rows <= ModelWeights::kMaxRowsRoutedAsAlone;
  const int64_t together = as_alone ? std::min(alone, rows) : rows;
  for (int64_t begin = 0; begin < rows; begin += together) {
    const int64_t count = std::min(together, rows - begin);
    KVBLEND_RETURN_IF_ERROR(backend_.Linear(stream, normed.Rows(begin, count), *weights.router,
                                            /*accumulate=*/false, logits.Rows(begin, count)));
  }
  if (weights.router_bias == nullptr) return absl::OkStatus();
  return backend_.AddScaled(stream, OneRow(*weights.router_bias, logits.cols), 1.0f, logits);
}

absl::Status Transformer::AddExperts(kernels::Stream& stream, const LayerWeights& weights,
                                     ConstMatrixView normed, PassState& state, MatrixView hidden) const {
  const kernels::RoutingSpec routing{.num_chosen = config_.num_used_experts,
                                     .renormalise = config_.renormalises_experts};
  const int64_t rows = normed.rows, chosen = rows * routing.num_chosen;
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView logits,
                           state.router_logits.Resize(backend_, rows, config_.num_experts, DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::IndicesView experts, state.experts.Resize(backend_, chosen));
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView factors,
                           state.expert_weights.Resize(backend_, rows, routing.num_chosen, DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView both,
      state.gate_up.Resize(backend_, chosen, 2 * int64_t{config_.ffn_dim}, DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView activated,
      state.activated.Resize(backend_, chosen, config_.ffn_dim, backend_.compute_dtype()));
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView outputs,
                           state.expert_outputs.Resize(backend_, chosen, hidden.cols, DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(Route(stream, weights, normed, logits));
  KVBLEND_RETURN_IF_ERROR(backend_.ChooseExperts(stream, logits, routing, experts, factors));
  KVBLEND_RETURN_IF_ERROR(MultiplyExperts(stream, normed, *weights.expert_gate_up,
                                          weights.expert_gate_up_bias.get(), experts, both));
  KVBLEND_RETURN_IF_ERROR(Activate(stream, both, activated));
  KVBLEND_RETURN_IF_ERROR(MultiplyExperts(stream, activated, *weights.expert_down,
                                          weights.expert_down_bias.get(), experts, outputs));
  return AddBranch(
      stream,
      [&](bool accumulate, MatrixView out) {
        return backend_.SumExperts(stream, outputs, factors, accumulate, out);
      },
      /*bias=*/nullptr, weights.post_ffw_norm.get(), state, hidden);
}

absl::Status Transformer::AddBranch(kernels::Stream& stream, Branch branch, const kernels::Buffer* bias,
                                    const kernels::Buffer* post_norm, PassState& state,
                                    MatrixView hidden) const {
  if (post_norm == nullptr && config_.residual_scale == 1) {
    KVBLEND_RETURN_IF_ERROR(branch(/*accumulate=*/true, hidden));
    if (bias == nullptr) return absl::OkStatus();
    return backend_.AddScaled(stream, OneRow(*bias, hidden.cols), 1.0f, hidden);
  }
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView added,
                           state.branch.Resize(backend_, hidden.rows, hidden.cols, DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(branch(/*accumulate=*/false, added));
  if (bias != nullptr) {
    KVBLEND_RETURN_IF_ERROR(backend_.AddScaled(stream, OneRow(*bias, added.cols), 1.0f, added));
  }
  if (post_norm != nullptr) {
    KVBLEND_RETURN_IF_ERROR(
        backend_.RmsNorm(stream, added, OneRow(*post_norm, added.cols), config_.rms_epsilon, added));
  }
  return backend_.AddScaled(stream, added, config_.residual_scale, hidden);
}

absl::Status Transformer::KeepRows(kernels::Stream& stream, absl::Span<const int32_t> row_indices,
                                   PassState& state) const {
  const int64_t rows = row_indices.size();
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView hidden,
                           state.hidden_gathered.Resize(backend_, rows, state.hidden.cols, DataType::kF32));
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView qkv,
                           state.qkv_gathered.Resize(backend_, rows, state.qkv.cols, DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(backend_.GatherRows(stream, state.hidden, row_indices, hidden));
  KVBLEND_RETURN_IF_ERROR(backend_.GatherRows(stream, state.qkv, row_indices, qkv));
  std::swap(state.hidden_storage, state.hidden_gathered);
  std::swap(state.qkv_storage, state.qkv_gathered);
  state.hidden = hidden;
  state.qkv = qkv;
  return absl::OkStatus();
}

absl::Status Transformer::Logits(kernels::Stream& stream, absl::Span<const int32_t> row_indices,
                                 PassState& state, MatrixView logits) const {
  const int64_t rows = row_indices.size();
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView chosen,
                           state.hidden_gathered.Resize(backend_, rows, config_.hidden_dim, DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(backend_.GatherRows(stream, state.hidden, row_indices, chosen));
  return LogitsOf(stream, chosen, state, logits);
}

absl::Status Transformer::AllLogits(kernels::Stream& stream, PassState& state, MatrixView logits) const {
  return LogitsOf(stream, state.hidden, state, logits);
}

absl::Status Transformer::LogitsOf(kernels::Stream& stream, ConstMatrixView hidden, PassState& state,
                                   MatrixView logits) const {
  KVBLEND_ASSIGN_OR_RETURN(
      const MatrixView normed,
      state.normed.Resize(backend_, hidden.rows, config_.hidden_dim, backend_.compute_dtype()));
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(stream, hidden, OneRow(*weights_.output_norm, config_.hidden_dim),
                                           config_.rms_epsilon, normed));
  KVBLEND_RETURN_IF_ERROR(
      backend_.Linear(stream, normed, weights_.output_layer(), /*accumulate=*/false, logits));
  if (config_.logit_soft_cap == 0) return absl::OkStatus();
  return backend_.SoftCap(stream, config_.logit_soft_cap, logits);
}

}  // namespace kvblend::model
