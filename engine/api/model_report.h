// What a model is, without loading it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend {

/// Tensors stored as one type.
struct TensorTypeReport {
  std::string type;  // "Q4_K", "BF16", ...
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;  // in the file
};

/// Numbers that the file does not state are 0.
struct ModelReport {
  std::string path;
  std::string name;          // general.name; may be empty
  std::string architecture;  // "llama", ...
  std::string fingerprint;
  int64_t parameters = 0;  // elements of all weights
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t vocabulary = 0;
  int64_t context_tokens = 0;  // the longest context that the model was made for
  /// Where K is rotated otherwise in contexts up to so many tokens (LongRoPE); otherwise 0.
  int64_t short_context_tokens = 0;
  std::vector<TensorTypeReport> types;  // most bytes first
  std::string tokenizer;                // "gpt2 (smollm)", "tokenizer.json"; empty: none
  bool has_chat_template = false;
  std::string
      chat_format;  // by name, or "template": the model's own, which has no name; empty: none that can be used

  int64_t weight_bytes = 0;        // in the memory of the CPU backend, about
  int64_t kv_bytes_per_token = 0;  // 16-bit pages, all layers
  int64_t kv_tokens = 0;           // the context that was asked for
  int64_t kv_bytes = 0;            // of that many tokens
  /// The part of kv_bytes that is needed once the prompt is done: layers with sliding windows keep only what
  /// the windows see.
  int64_t answer_kv_bytes = 0;
  /// OK: an engine with default settings, and this context, runs the model; a correction beside it is one of
  /// its settings. Otherwise why not. The values of weights are not looked at: one that is an infinity or NaN
  /// is found only when they are loaded.
  absl::Status runs;
};

/// Looks at the model file or folder at `path`. Memory is computed for a context of `context_tokens`; 0: the
/// model's own. `chat_format` is as in EngineOptions. kNotFound, kInvalidArgument, kDataLoss or
/// kUnimplemented where the file cannot be read at all.
absl::StatusOr<ModelReport> InspectModel(const std::string& path, int64_t context_tokens,
                                         const std::string& chat_format = "auto");

}  // namespace kvblend
