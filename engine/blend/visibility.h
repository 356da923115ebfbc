// Who sees whose KV in layers with sliding windows, and so what need be neither loaded nor computed. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/model/model_config.h"

namespace kvblend::blend {

/// A layer's window: a row at position q sees the keys k with q - k < window; 0: all k <= q.
using Windows = absl::Span<const int32_t>;  // [num_layers]

std::vector<int32_t> WindowsOf(const model::ModelConfig& config);

/// From which position on anything of a layer matters to the tokens behind the prompt and to its last logits.
struct FirstNeeded {
  int32_t kv = 0;   // KV of positions before this is read by nobody
  int32_t row = 0;  // what becomes of the rows before this, from attention on, is read by nobody
};

/// Layer by layer. The last layer's rows but the last are needed for their KV only; from there the windows of the layers
/// behind decide.
std::vector<FirstNeeded> FirstNeededPositions(Windows windows, int32_t prompt_tokens);

/// The rows of a pass, and which of them attend in which layer.
struct Readers {
  absl::Span<const int32_t> positions;         // ascending
  absl::Span<const FirstNeeded> first_needed;  // [num_layers]; empty: all rows attend in every layer

  absl::Span<const int32_t> In(int32_t layer) const;
};

/// Whether any of the rows at `readers` (ascending positions) sees a key of the positions [begin, end).
bool AnySees(absl::Span<const int32_t> readers, int32_t window, int32_t begin, int32_t end);

}  // namespace kvblend::blend
