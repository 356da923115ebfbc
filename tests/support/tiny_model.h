// Small random llama models with a working tokenizer, so that tests need no real model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/support/gguf_builder.h"

namespace kvblend::test_support {

enum class TinyRopeScaling : uint8_t { kNone, kLinear, kLlama3 };
enum class TinyWeightType : uint8_t { kF32, kF16, kQ8_0 };

struct TinyModelSpec {
  int32_t num_layers = 2;
  int32_t hidden_dim = 32;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 8;
  int32_t ffn_dim = 64;          // of each expert where there are any
  int32_t num_experts = 0;       // as Mixtral has them; 0: an MLP
  int32_t num_used_experts = 2;  // of num_experts
  int32_t context_length = 1024;
  uint64_t seed = 1;  // other seeds, other weights
  float rope_freq_base = 10000;
  TinyRopeScaling rope_scaling = TinyRopeScaling::kNone;
  float rope_linear_factor = 2;  // with kLinear
  bool tied_output = true;
  TinyWeightType weight_type =
      TinyWeightType::kF32;      // of the matrices; kQ8_0 wants dims that are multiples of 32
  bool quantized_router = true;  // false: the matrix that chooses experts has values, as in published files
};

/// Special tokens of the vocabulary below. Ids 3 to 258 are the bytes 0 to 255; merged tokens follow.
inline constexpr int32_t kTinyEndOfText = 0;  // <|endoftext|>
inline constexpr int32_t kTinyImStart = 1;    // <|im_start|>, the BOS token
inline constexpr int32_t kTinyImEnd = 2;      // <|im_end|>, the EOS token
inline constexpr int32_t kTinyFirstByte = 3;

/// The vocabulary: byte-level BPE, GPT-2's byte alphabet, pre-tokenizer "smollm", ChatML special tokens.
std::vector<std::string> TinyTokens();
std::vector<std::string> TinyMerges();
int32_t TinyVocabSize();

/// A complete model file, for a test to change before it calls Build(). The same spec gives the same bytes.
GgufBuilder TinyModelBuilder(const TinyModelSpec& spec);

std::string BuildTinyModel(const TinyModelSpec& spec);

/// Writes BuildTinyModel(spec) to `path`, replacing what was there.
absl::Status WriteTinyModel(const std::string& path, const TinyModelSpec& spec = {});

}  // namespace kvblend::test_support
