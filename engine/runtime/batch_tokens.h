// The default of max_batch_tokens: for how many tokens of answers the page pool has pages. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/backend.h"

namespace kvblend {

/// Four times the context. On a device with memory of its own (`memory`, measured with the weights loaded) as
/// many as `max_batch_size` answers can ever need, but so that the context and these tokens, of `token_bytes`
/// each, take at most kMemoryShare of its free memory. Never less than the context, nor more than `limit`.
inline int64_t DefaultBatchTokens(const std::optional<kernels::DeviceMemory>& memory, int64_t token_bytes,
                                  int64_t max_context_tokens, int32_t max_batch_size, int64_t limit) {
  constexpr double kMemoryShare = 0.8;  // passes need scratch, and other programs may be there
  int64_t tokens = 4 * max_context_tokens;
  if (memory.has_value()) {
    const double free_bytes = static_cast<double>(memory->total_bytes - memory->used_bytes);
    const double fit = kMemoryShare * free_bytes / static_cast<double>(token_bytes);
    tokens = max_batch_size * max_context_tokens;
    if (fit - static_cast<double>(max_context_tokens) < static_cast<double>(tokens)) {
      tokens = static_cast<int64_t>(fit) - max_context_tokens;
    }
  }
  if (tokens > limit) tokens = limit;
  return tokens < max_context_tokens ? max_context_tokens : tokens;
}

}  // namespace kvblend
