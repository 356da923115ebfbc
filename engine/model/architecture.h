// What tells the model families apart: one row of a table for each. The loader and the one transformer read a
// model's row; nothing else asks for its name.
//
// Common to all: RMSNorm before attention and before the MLP, grouped-query attention with RoPE, a gated MLP
// or experts each of which is one, residual additions. The names of keys and tensors are GGUF's
// (ggml-org/ggml, docs/gguf.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace kvblend::model {

/// Whether a file has tensors of some kind.
enum class Presence : uint8_t { kNever, kOptional, kAlways };

/// Which layers attend within a window only, where the file states one ("attention.sliding_window").
enum class WindowedLayers : uint8_t {
  kNone,  // the key is refused
  kAll,
  kAllButEveryNth,  // the last layer of every `window_period` sees everything
};

struct Architecture {
  std::string_view name;  // general.architecture, and the prefix of its keys
  kernels::RopeLayout rope_layout = kernels::RopeLayout::kSplitHalf;  // of Q and K as the tensors have them
  kernels::Activation activation = kernels::Activation::kSilu;
  Presence qkv_bias = Presence::kNever;     // attn_{q,k,v}.bias
  Presence output_bias = Presence::kNever;  // attn_output.bias
  bool qk_norm = false;                     // attn_{q,k}_norm: RMSNorm of every head of Q and K, before RoPE
  bool post_norms = false;  // post_attention_norm, post_ffw_norm: of what is added to the residual stream
  /// Whether layers have a mixture of experts in place of the MLP (keys expert_*, tensors ffn_gate_inp and
  /// ffn_{gate,up,down}_exps): a softmax over the router's logits, of which the highest are taken. kOptional:
  /// where the file states a number of experts.
  Presence experts = Presence::kNever;
  bool renormalises_experts = true;  // the weights of the chosen ones add up to 1; a key may say otherwise
  bool expert_biases = false;        // ffn_gate_inp.bias and ffn_{gate,up,down}_exps.bias
  bool attention_sinks = false;      // attn_sinks.weight, as of kernels::AttentionSpec
  /// The norm before the MLP, behind "blk.<layer>.".
  std::string_view ffn_norm = "ffn_norm.weight";
  bool fused_tensors = false;         // attn_qkv (q | k | v) and ffn_up (gate | up) instead of three and two
  bool embedding_times_root = false;  // embeddings are multiplied by sqrt(embedding length)
  /// What bounds attention's scores and the logits where a file does not say it (keys attn_logit_softcapping
  /// and final_logit_softcapping); 0: there are no such bounds, and the keys are refused.
  float attention_soft_cap = 0;
  float logit_soft_cap = 0;
  bool reads_scales = false;     // keys embedding_scale, residual_scale, attention.scale, logit_scale
  bool reads_long_rope = false;  // tensors rope_factors_{short,long}.weight, key rope.scaling.attn_factor
  WindowedLayers windowed_layers = WindowedLayers::kNone;
  int32_t window_period = 0;   // for kAllButEveryNth
  int32_t default_window = 0;  // tokens, where the file does not state one
  /// YaRN's bounds, pairs between which frequencies pass from stretched to plain, are whole numbers.
  bool yarn_has_whole_bounds = true;
  float windowed_rope_freq_base =
      0;  // of layers with a window, which no scaling slows down, unless the file states one; 0: as the others
  int32_t unrotated_layer_period = 0;  // the last layer of so many has no RoPE; 0: all have
  /// Models of so many layers scale scores by 1 / sqrt(embedding length / heads) rather than 1 /
  /// sqrt(head_dim).
  int32_t num_layers_scaled_by_width = 0;

  constexpr bool has_soft_caps() const { return attention_soft_cap > 0 || logit_soft_cap > 0; }
};

/// nullptr when there is none of that name.
const Architecture* FindArchitecture(std::string_view name);
/// "'llama', 'qwen2', ...": for messages.
std::string ArchitectureNames();

}  // namespace kvblend::model
