// How far the attention of a prompt's last rows over corrected KV is from what they get over full prefill's,
// and which way each element of K and V would have to go. Squared error of K and V weighs every direction
// alike; what answers are made of is what attention reads, so corrections are fitted to that in the end
// (engine/kv/tuning/layer_tuner.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/host/batch_plan.h"

namespace kvblend::kv {

/// One layer's attention over a prompt, as full prefill has it.
struct LayerAttention {
  int32_t num_heads = 0;  // a multiple of num_kv_heads
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;
  float logit_soft_cap = 0;    // 0: none
  int32_t sliding_window = 0;  // 0: none
  std::vector<float> sinks;    // [num_heads], or none
  const kernels::HostRopeTable* rope = nullptr;

  absl::Span<const float> fresh;  // [tokens, 2 * num_kv_heads * head_dim]: K before RoPE and V, side by side
  absl::Span<const float> queries;  // [rows, num_heads * head_dim], rotated, of the last `rows` tokens
  absl::Span<const float> weights;  // [rows], > 0: what each counts
  absl::Span<const float> output;   // [num_heads * head_dim, width]: what is multiplied by it goes on

  int64_t channels() const { return int64_t{2} * num_kv_heads * head_dim; }
  int64_t num_tokens() const { return static_cast<int64_t>(fresh.size()) / channels(); }
  int64_t num_rows() const { return static_cast<int64_t>(queries.size()) / (int64_t{num_heads} * head_dim); }
};

/// Weighted sum over rows of |(attention over `corrected` - attention over fresh) output|^2, all heads side
/// by side, divided by that of |attention over fresh output|^2; `gradient`: its derivative by `corrected`.
/// Both have fresh's shape. Works on `num_threads` threads, whose number changes roundings only.
double MatchAttention(const LayerAttention& attention, absl::Span<const float> corrected, int32_t num_threads,
                      absl::Span<float> gradient);

}  // namespace kvblend::kv
