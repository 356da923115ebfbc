// What the architectures' Hugging Face folders have in config.json and in their tensors, and what that is
// called in GGUF files. Internal to engine/model.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"

namespace kvblend::model {

enum class HfFieldKind : uint8_t {
  kInteger,       // becomes a key of uint32
  kNumber,        // becomes a key of float32
  kNumberOrNull,  // the same; null, which is not what the architecture takes without the field, becomes 0
  kSwitch,        // true, as without the key, or false, which becomes a key of bool
  kSameAs,        // another name of the field `text`: must have its value
  kHarmless,      // changes no result
  kMustBe,        // other values would change results in a way that is not implemented
  kRead,          // has code of its own (hf_config.cc, hf_rope.cc)
};

struct HfField {
  std::string_view name;  // in config.json
  HfFieldKind kind;
  /// kInteger, kNumber, kNumberOrNull: the key behind "<architecture>."; kMustBe: the allowed value as JSON.
  std::string_view text = {};
  bool required = false;
};

/// A tensor of a layer, behind "model.layers.<layer>." and "blk.<layer>.".
struct HfTensorName {
  std::string_view name;
  std::string_view gguf_name;
};

struct HfArchitecture {
  std::string_view model_type;    // config.json's
  std::string_view architecture;  // general.architecture
  /// GGUF files of this architecture have the rows of Q and K in the order of interleaved RoPE pairs.
  bool permuted = false;
  /// RMSNorm multiplies by 1 + weight, and GGUF files have the sum.
  bool norms_add_one = false;
  bool gelu = false;  // otherwise SiLU
  /// Every so many layers attend to all positions, the others within the window. 1: no such order
  int32_t window_pattern = 1;
  /// Without such an order: whether all layers attend within config.json's sliding_window, if it has one.
  bool has_window = false;
  int64_t default_window = 0;          // where config.json does not name sliding_window; 0: none
  bool switches_window = false;        // use_sliding_window decides, which must be off
  int32_t unrotated_layer_period = 0;  // the last layer of so many has no RoPE; 0: all have
  double default_rope_theta = 0;     // what transformers takes when config.json has none; 0: it must be there
  bool states_rope_scaling = false;  // config.json must say how RoPE is scaled
  bool writes_vocab_size = false;    // GGUF files have the keys vocab_size and rope.dimension_count
  absl::Span<const HfField> fields = {};   // besides those of all
  absl::Span<const HfTensorName> tensors;  // of a layer
  absl::Span<const HfTensorName> experts =
      {};  // behind "model.layers.<layer>.<expert_prefix><expert>.", stacked
  std::string_view expert_prefix = {};
  bool fused_experts = false;  // all experts of a layer lie in a few tensors (hf_fused_experts.h)
};

/// Fields that mean the same in every architecture.
absl::Span<const HfField> HfCommonFields();

absl::Span<const HfArchitecture> HfArchitectures();

}  // namespace kvblend::model
