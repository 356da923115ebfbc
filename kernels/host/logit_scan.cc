#include "kernels/host/logit_scan.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace kvblend::kernels {
namespace {

constexpr size_t kBlock = 1024;  // logits; whole blocks are skipped before one is searched

bool IsFinite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u; }

// Ordered as finite floats are. Adding zero makes -0 a 0.
int32_t Order(float x) {
  const auto bits = std::bit_cast<int32_t>(x + 0.0f);
  return bits ^ (bits >> 31 & INT32_MAX);
}

}  // namespace

int32_t FindInvalid(absl::Span<const float> logits) {
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const absl::Span<const float> block = logits.subspan(begin, kBlock);
    uint32_t invalid = 0;
    for (const float x : block) invalid |= IsFinite(x) ? 0u : 1u;
    if (invalid == 0) continue;
    return static_cast<int32_t>(std::find_if_not(block.begin(), block.end(), IsFinite) - logits.begin());
  }
  return -1;
}

int32_t MostLikely(absl::Span<const float> logits) {
  int32_t largest = INT32_MIN;  // below every finite float's
  absl::Span<const float> best;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const absl::Span<const float> block = logits.subspan(begin, kBlock);
    int32_t of_block = INT32_MIN;
    for (const float x : block) of_block = std::max(of_block, Order(x));
    if (of_block <= largest) continue;
    largest = of_block;
    best = block;
  }
  const auto found = std::find_if(best.begin(), best.end(), [&](float x) { return Order(x) == largest; });
  return static_cast<int32_t>(found - logits.begin());
}

}  // namespace kvblend::kernels
