// ValueLengths: a sweep over the values of a layer, which are read once.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

/// Squared lengths of the values of one sequence's positions. Used by one thread.
class SquaredLengths {
 public:
  SquaredLengths(const HostBatchPlan& plan, const KvPagesView& pages, int64_t sequence)
      : plan_(plan), pages_(pages), values_(PageValues::Values(pages)), sequence_(sequence) {}

  float Of(int32_t position) const {
    if (pages_.layout == PageLayout::kTiles) {
      float squares[2];
      OfPair(position, squares);
      return squares[position % 2];
    }
    float sum = 0;
    for (int32_t h = 0; h < pages_.num_kv_heads; ++h) {
      sum += OfHead(plan_.Slot(pages_, sequence_, h, position));
    }
    return sum;
  }

  /// For the position and its neighbour, which share words. REQUIRES: layout kTiles
  void OfPair(int32_t position, float (&squares)[2]) const {
    squares[0] = squares[1] = 0;
    for (int32_t h = 0; h < pages_.num_kv_heads; ++h) {
      const int64_t slot = plan_.Slot(pages_, sequence_, h, position / 2 * 2);
      simd::AddSquaresOfPairs(static_cast<const uint16_t*>(values_.data) + values_.Index(slot, 0),
                              pages_.head_dim, squares);
    }
  }

 private:
  float OfHead(int64_t slot) const {
    const int64_t head_dim = pages_.head_dim;
    if (pages_.dtype != DataType::kInt8) {
      return simd::SumOfSquares(static_cast<const std::byte*>(values_.data) + slot * SizeOf(pages_.dtype),
                                pages_.dtype, head_dim);
    }
    auto* decoded = ThreadScratch<float>(ScratchSlot::kDecoded, head_dim);
    simd::DequantizeHeads(values_.CodesAt(slot), values_.StepsAt(slot), 1, head_dim, DataType::kF32, decoded,
                          nullptr);
    return simd::SumOfSquares(decoded, DataType::kF32, head_dim);
  }

  const HostBatchPlan& plan_;
  const KvPagesView& pages_;
  const PageValues values_;
  const int64_t sequence_;
};

}  // namespace

void CpuValueLengths(CpuContext& context, const HostBatchPlan& plan, const KvPagesView& pages, float* out) {
  const int64_t row_bytes = int64_t{pages.num_kv_heads} * pages.head_dim * SizeOf(pages.dtype);
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    float* const of_sequence = out + plan.kv_offset(s);
    ForRows(context.pool, plan.kv_len(s), row_bytes, [&](int64_t begin, int64_t end) {
      const SquaredLengths squared(plan, pages, s);
      for (int64_t j = begin; j < end; ++j) {
        const auto position = static_cast<int32_t>(j);
        if (pages.layout == PageLayout::kTiles && j % 2 == 0 && j + 1 < end) {
          float squares[2];
          squared.OfPair(position, squares);
          of_sequence[j] = std::sqrt(squares[0]);
          of_sequence[++j] = std::sqrt(squares[1]);
        } else {
          of_sequence[j] = std::sqrt(squared.Of(position));
        }
      }
    });
  }
}

}  // namespace kvblend::kernels
