// Which tokens see which KV in layers with sliding windows, and so what need not be loaded or computed. Pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/model/model_config.h"

namespace kvblend::blend {

/// A layer's window: a row at position q sees the keys k with q - k < window; 0: all k <= q.
using Windows = absl::Span<const int32_t>;  // [num_layers]

std::vector<int32_t> WindowsOf(const model::ModelConfig& config);

/// From which positions on a layer matters to the tokens after the prompt and to the prompt's last logits.
struct FirstNeeded {
  int32_t kv = 0;   // KV of positions before this is never read
  int32_t row = 0;  // rows before this need not be computed further, from this layer's attention on
};

/// For each layer. In the last layer, all rows but the last are needed only for their KV; in the layers
/// before it, the windows of the layers that follow decide.
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
