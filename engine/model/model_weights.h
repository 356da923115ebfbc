// A model's weights in a backend's memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"

namespace kvblend::model {

/// What an architecture does not have is null.
struct LayerWeights {
  std::unique_ptr<kernels::Buffer> attn_norm;   // f32 [1, hidden]
  std::unique_ptr<kernels::PackedWeights> qkv;  // [(num_heads + 2 * num_kv_heads) * head_dim, hidden]: q|k|v
  std::unique_ptr<kernels::Buffer> qkv_bias;    // f32 [1, rows of qkv]
  std::unique_ptr<kernels::Buffer> q_norm;      // f32 [1, head_dim]
  std::unique_ptr<kernels::Buffer> k_norm;      // f32 [1, head_dim]
  std::unique_ptr<kernels::PackedWeights> attn_output;     // [hidden, num_heads * head_dim]
  std::unique_ptr<kernels::Buffer> attn_output_bias;       // f32 [1, hidden]
  std::unique_ptr<kernels::Buffer> post_attention_norm;    // f32 [1, hidden]
  std::unique_ptr<kernels::Buffer> attn_sinks;             // f32 [1, num_heads]
  std::unique_ptr<kernels::Buffer> ffn_norm;               // f32 [1, hidden]
  std::unique_ptr<kernels::PackedWeights> gate_up;         // [2 * ffn, hidden]: gate|up
  std::unique_ptr<kernels::PackedWeights> down;            // [hidden, ffn]
  std::unique_ptr<kernels::PackedWeights> router;          // [experts, hidden]
  std::unique_ptr<kernels::Buffer> router_bias;            // f32 [1, experts]
  std::unique_ptr<kernels::PackedExperts> expert_gate_up;  // of each expert [2 * ffn, hidden]: gate|up
  std::unique_ptr<kernels::Buffer> expert_gate_up_bias;    // f32 [experts, 2 * ffn]
  std::unique_ptr<kernels::PackedExperts> expert_down;     // of each expert [hidden, ffn]
  std::unique_ptr<kernels::Buffer> expert_down_bias;       // f32 [experts, hidden]
  std::unique_ptr<kernels::Buffer> post_ffw_norm;          // f32 [1, hidden]
};

/// Immutable after loading, so any number of threads may use it. Must not outlive the backend it was loaded
/// into; needs neither the file nor the stream any more.
struct ModelWeights {
  std::unique_ptr<kernels::PackedWeights> token_embedding;  // [vocab, hidden]; the output layer too when tied
  std::unique_ptr<kernels::PackedWeights> output;           // [vocab, hidden]; null when tied
  std::unique_ptr<kernels::Buffer> output_norm;             // f32 [1, hidden], times config.logit_scale
  std::vector<LayerWeights> layers;
  std::vector<std::unique_ptr<kernels::RopeTable>>
      ropes;  // as config.ropes; positions below config.context_length

  /// How many rows may share a pass: each has the bits then that it gets alone. Where it has others in any
  /// company, as on a GPU, there is nothing to keep to, and no limit.
  int64_t max_rows_together(const ModelConfig& config) const;
  /// A pass of at most so many rows chooses their experts a few rows at a time, lest this small matrix, which
  /// files have as values, lets fewer rows share the pass than all others do.
  static constexpr int64_t kMaxRowsRoutedAsAlone = 32;

  const kernels::PackedWeights& output_layer() const {
    return output != nullptr ? *output : *token_embedding;
  }
};

/// Told by the thread that loads, every megabyte or so and at the end, how much of the file's tensors has
/// been read.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

/// Packs row by row into the backend's own form, which may keep the file's codes; the whole model never
/// exists as floats. Of LongRoPE's frequencies those for config.context_length are taken. `config` comes from
/// ReadModelConfig on the same file. kInvalidArgument naming a tensor of wrong shape, kDataLoss naming a row
/// that holds an infinity or NaN, or the backend's error. Synchronizes the stream.
absl::StatusOr<ModelWeights> LoadModelWeights(const GgufFile& file, const ModelConfig& config,
                                              kernels::Backend& backend, kernels::Stream& stream,
                                              const LoadProgress& progress = nullptr);

/// Identifies what the model computes, as part of every chunk key: KV of one fingerprint is valid for all
/// files with the same. SHA-256 over the architecture, every "<architecture>.*" metadata entry,
/// general.quantization_version, and per tensor its name, type, dims and the XXH3-128 of its data. Sorted by
/// name, so the order, alignment and padding of the file do not matter. Descriptions (general.name, licences,
/// ...) and the tokenizer are left out: they change no KV, as chunk keys hold token ids. XXH3 finds
/// accidental differences fast (tens of GB/s); it does not withstand someone who crafts two models with one
/// fingerprint, who could as well hand out a bad model.
/// `short_rope`: of LongRoPE's frequencies those for short contexts are taken although the file's own context
/// is long, since it is limited (ModelConfig::UsesLongRope). Every layer's input depends on them, so this is
/// another model.
absl::StatusOr<std::array<uint8_t, 32>> Fingerprint(const GgufFile& file, bool short_rope = false);

}  // namespace kvblend::model
