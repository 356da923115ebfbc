// What a GGUF file says about the model in it: the architecture's numbers and the tokenizer's data.
//
// kvblend runs the `llama` architecture: RMSNorm, RoPE on interleaved pairs, grouped-query attention, SwiGLU,
// tied or separate output layer, RoPE scaling none, linear or llama3 (the rope_freqs.weight tensor). A file
// that asks for anything else is refused by name (kUnimplemented): an unknown metadata key or tensor may
// change the mathematics, so none is ignored unless it is on the list of keys known not to
// (model_config_keys.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf_file.h"
#include "engine/text/tokenizer.h"
#include "kernels/backend.h"

namespace kvblend::model {

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name; may be empty
  int32_t num_layers = 0;
  int32_t hidden_dim = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // even
  int32_t ffn_dim = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens; LoadModelWeights sizes the RoPE table by it, so lower it before
  float rms_epsilon = 0;
  kernels::RopeLayout rope_layout = kernels::RopeLayout::kInterleaved;
  float rope_freq_base = 0;
  std::vector<float> inv_freq;  // [head_dim / 2], radians per position, scaling applied
  bool tied_output = false;     // the output layer is the token embedding
  std::string chat_template;    // Jinja source from the file; may be empty
};

/// kInvalidArgument, kDataLoss or kUnimplemented naming the file and the key or tensor.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

/// The tokenizer of a file, as Tokenizer::Create takes it. Checks that ids are below the number of tokens, tokens are
/// distinct and valid UTF-8, and merges are well-formed. kUnimplemented naming the kind of tokenizer for others than
/// byte-level BPE ("gpt2") and SentencePiece's BPE ("llama").
absl::StatusOr<text::TokenizerSpec> ReadTokenizerSpec(const GgufFile& file);

}  // namespace kvblend::model
