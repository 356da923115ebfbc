// What a model file says about the model in it: the architecture's numbers and the tokenizer's data.
//
// A file that asks for anything that its architecture's row (architecture.h) does not have is refused by name
// (kUnimplemented): an unknown metadata key or tensor may change the mathematics, so none is ignored unless
// it is on the list of keys known not to (model_config_keys.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/rope_config.h"
#include "engine/text/tokenizer.h"
#include "kernels/backend.h"

namespace kvblend::model {

struct LayerConfig {
  int32_t sliding_window = 0;  // tokens, as of kernels::AttentionSpec; 0: all
  int32_t rope = 0;            // index into ModelConfig::ropes
};

struct ModelConfig {
  const Architecture* architecture = nullptr;  // a row of the table; never null
  std::string name;                            // general.name on one line, cut; may be empty
  int32_t num_layers = 0;
  int32_t hidden_dim = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;           // divides num_heads
  int32_t head_dim = 0;               // even
  int32_t ffn_dim = 0;                // of the MLP or, in a mixture, of each expert
  int32_t num_experts = 0;            // of each layer; 0: an MLP
  int32_t num_used_experts = 0;       // per token; 1 to num_experts where there are any
  bool renormalises_experts = false;  // as of kernels::RoutingSpec
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens; LoadModelWeights sizes the RoPE tables by it, so lower it before
  float rms_epsilon = 0;
  float rope_freq_base = 0;
  std::vector<RopeConfig> ropes;        // those that layers use
  std::vector<int32_t> rotation_order;  // of the rows of each head of Q and K; empty: as in the file
  std::vector<LayerConfig> layers;
  float embedding_scale = 1;
  float residual_scale = 1;      // of what attention and the MLP add to the residual stream
  float attention_scale = 1;     // of attention's scores
  float logit_scale = 1;         // logits are multiplied by it
  float attention_soft_cap = 0;  // of attention's scores, as of kernels::AttentionSpec; 0: none
  float logit_soft_cap = 0;      // of the logits, likewise
  bool has_output_bias = false;
  bool has_qkv_bias = false;
  bool tied_output = false;   // the output layer is the token embedding
  std::string chat_template;  // Jinja source from the file; may be empty

  /// The inner width of the MLP, or of all experts that a token uses together: what its products cost.
  int64_t used_ffn_dim() const { return int64_t{ffn_dim} * (num_experts > 0 ? num_used_experts : 1); }

  /// Whether K of a context of at most `context_tokens` is rotated by LongRoPE's frequencies for long ones.
  bool UsesLongRope(int32_t context_tokens) const;

  /// How a backend is told of one of `ropes`, which must outlive what this gives.
  kernels::RopeSpec RopeSpecOf(const RopeConfig& rope, int64_t max_position) const;
};

/// kInvalidArgument, kDataLoss or kUnimplemented naming the file and the key or tensor.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

/// The tokenizer of a file, as Tokenizer::Create takes it. Checks that ids are below the number of tokens,
/// tokens are distinct and valid UTF-8, and merges are well-formed. kUnimplemented naming the kind of
/// tokenizer for others than byte-level BPE ("gpt2"), SentencePiece's BPE ("llama") and its unigram models
/// ("t5").
absl::StatusOr<text::TokenizerSpec> ReadTokenizerSpec(const GgufFile& file);

}  // namespace kvblend::model
