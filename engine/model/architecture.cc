#include "engine/model/architecture.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace kvblend::model {
namespace {

using kernels::Activation;
using kernels::RopeLayout;

constexpr std::array kArchitectures = {
    // Llama 1 to 3.3, Mistral, TinyLlama, SmolLM 1 and 2, and what else has their shape; with experts:
    // Mixtral.
    Architecture{.name = "llama",
                 .rope_layout = RopeLayout::kInterleaved,
                 .qkv_bias = Presence::kOptional,
                 .output_bias = Presence::kOptional,
                 .experts = Presence::kOptional,
                 .windowed_layers = WindowedLayers::kAll},
    Architecture{.name = "smollm3", .rope_layout = RopeLayout::kInterleaved, .unrotated_layer_period = 4},
    // Qwen 2 and 2.5.
    Architecture{.name = "qwen2", .qkv_bias = Presence::kAlways},
    Architecture{.name = "qwen3", .qk_norm = true},
    // The 27B model has 46 layers. Files of its first weeks state neither caps nor window.
    Architecture{.name = "gemma2",
                 .activation = Activation::kGeluTanh,
                 .post_norms = true,
                 .embedding_times_root = true,
                 .attention_soft_cap = 50,
                 .logit_soft_cap = 30,
                 .windowed_layers = WindowedLayers::kAllButEveryNth,
                 .window_period = 2,
                 .default_window = 4096,
                 .num_layers_scaled_by_width = 46},
    Architecture{.name = "qwen3moe", .qk_norm = true, .experts = Presence::kAlways},
    // The 27B model has 62 layers.
    Architecture{.name = "gemma3",
                 .activation = Activation::kGeluTanh,
                 .qk_norm = true,
                 .post_norms = true,
                 .embedding_times_root = true,
                 .windowed_layers = WindowedLayers::kAllButEveryNth,
                 .window_period = 6,
                 .windowed_rope_freq_base = 10000,
                 .num_layers_scaled_by_width = 62},
    // Phi 3, 3.5 and 4 (mini).
    Architecture{.name = "phi3",
                 .fused_tensors = true,
                 .reads_long_rope = true,
                 .windowed_layers = WindowedLayers::kAll},
    Architecture{.name = "granite", .rope_layout = RopeLayout::kInterleaved, .reads_scales = true},
    // Its files name the norm before the MLP as if it were behind attention.
    Architecture{.name = "gpt-oss",
                 .activation = Activation::kClampedSilu,
                 .qkv_bias = Presence::kAlways,
                 .output_bias = Presence::kAlways,
                 .experts = Presence::kAlways,
                 .expert_biases = true,
                 .attention_sinks = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .windowed_layers = WindowedLayers::kAllButEveryNth,
                 .window_period = 2,
                 .default_window = 128,
                 .yarn_has_whole_bounds = false},
};

}  // namespace

const Architecture* FindArchitecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

std::string ArchitectureNames() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "'" : ", '", std::string(architecture.name), "'");
  }
  return names;
}

}  // namespace kvblend::model
