// A thread takes K, or V, of one head in one range. It sums the rows' deviations from left to right and from
// right to left, so that a token's move is a sum of two vectors, those of the rows on its either side, each
// faded by how far away its row is, and of the vector of all rows.
#include "kernels/cpu/kv/spread.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"
#include "kernels/host/range_rows.h"

namespace kvblend::kernels {
namespace {

/// exp(-distance / reach) by distance; 0 where that adds nothing to sums in fp32.
class Fades {
 public:
  explicit Fades(const DeviationSpread& spread)
      : horizon_(spread.anywhere > 0 ? 0 : kSpreadReaches * spread.reach) {
    constexpr float kReaches = 24;
    const auto size = static_cast<int32_t>(std::ceil(kReaches * spread.reach)) + 1;
    for (int32_t distance = 0; distance < size; ++distance) {
      fades_.push_back(std::exp(-static_cast<float>(distance) / spread.reach));
    }
  }
  float Of(int32_t distance) const {
    return static_cast<size_t>(distance) < fades_.size() ? fades_[distance] : 0.0f;
  }
  /// Whether a token moves whose nearest row is so far away.
  bool Reaches(int32_t distance) const { return horizon_ == 0 || static_cast<float>(distance) <= horizon_; }

 private:
  const float horizon_;
  std::vector<float> fades_;
};

// Tokens that are moved at once.
constexpr int64_t kBlock = simd::kTileColumns;

/// K, or V, of one head in one range. Used by one thread.
class HeadOfRange {
 public:
  HeadOfRange(const KvTarget& target, const RangeRows& range, const DeviationSpread& spread,
              const Fades& fades, ConstMatrixView fresh, bool is_keys, int32_t head)
      : target_(target),
        range_(range),
        spread_(spread),
        fades_(fades),
        fresh_(fresh),
        held_(is_keys ? PageValues::Keys(target.pages) : PageValues::Values(target.pages)),
        is_keys_(is_keys),
        head_(head),
        head_dim_(target.pages.head_dim) {
    auto* memory = ThreadScratch<float>(
        ScratchSlot::kSpread, 2 * int64_t{range.num_rows} * (head_dim_ + 1) + (kBlock + 2) * head_dim_);
    before_ = memory;
    after_ = before_ + range.num_rows * head_dim_;
    all_ = after_ + range.num_rows * head_dim_;
    nothing_ = all_ + head_dim_;
    block_ = nothing_ + head_dim_;
    before_weights_ = block_ + kBlock * head_dim_;
    after_weights_ = before_weights_ + range.num_rows;
  }

  void Spread() {
    std::fill_n(all_, 2 * head_dim_, 0.0f);
    SumDeviations();
    int64_t next = 0;  // the first row that is not before the token
    const int32_t page_size = target_.pages.page_size;
    for (int32_t token = range_.begin; token < range_.end;) {
      const int32_t in_page = token % page_size;
      const int32_t end =
          std::min({range_.end, token - in_page + page_size,
                    token - in_page % static_cast<int32_t>(kBlock) + static_cast<int32_t>(kBlock)});
      MoveBlock(token, end, next);
      token = end;
    }
  }

 private:
  int32_t Position(int64_t row) const { return target_.plan.position(range_.first_row + row); }
  int64_t Slot(int32_t position) const { return target_.plan.Slot(target_.pages, 0, head_, position); }

  /// What the pages hold of a position's head, in f32.
  void Load(int32_t position, float* out) const {
    const int64_t slot = Slot(position);
    if (held_.dtype == DataType::kInt8) {
      return simd::DequantizeHeads(held_.CodesAt(slot), held_.StepsAt(slot), 1, head_dim_, DataType::kF32,
                                   out, nullptr);
    }
    if (held_.layout == PageLayout::kRows) {
      return simd::ConvertRow(static_cast<const std::byte*>(held_.data) + slot * SizeOf(held_.dtype),
                              held_.dtype, out, DataType::kF32, head_dim_);
    }
    const auto* elements = static_cast<const uint16_t*>(held_.data) + held_.Index(slot, 0);
    if (!is_keys_) {
      for (int64_t d = 0; d < head_dim_; ++d) out[d] = Bf16ToF32(elements[2 * d]);
      return;
    }
    for (int64_t d = 0; d < head_dim_; d += 2, elements += 2 * kPageTile) {
      out[d] = Bf16ToF32(elements[0]);
      out[d + 1] = Bf16ToF32(elements[1]);
    }
  }

  /// The deviation of a row, K before RoPE.
  void Deviation(int64_t row, float* out) const {
    const int32_t position = Position(row);
    Load(position, out);
    if (is_keys_) {
      simd::UnrotateHead(target_.rope.layout(), target_.rope.cos(position), target_.rope.sin(position),
                         head_dim_, out);
    }
    const float* fresh =
        static_cast<const float*>(fresh_.Rows(range_.first_row + row, 1).data) + head_ * head_dim_;
    for (int64_t d = 0; d < head_dim_; ++d) out[d] = fresh[d] - out[d];
  }

  /// Fills before_[i], the faded sum of the deviations of rows 0 .. i as seen from row i, likewise after_[i]
  /// of rows i .. n-1, their weights and, where it counts, all_.
  void SumDeviations() {
    const int64_t n = range_.num_rows;
    for (int64_t i = 0; i < n; ++i) {
      float* deviation = before_ + i * head_dim_;
      Deviation(i, deviation);
      std::copy_n(deviation, head_dim_, after_ + i * head_dim_);
      if (spread_.anywhere > 0) simd::AddScaledRow(deviation, 1.0f, all_, head_dim_);
      before_weights_[i] = after_weights_[i] = 1;
    }
    for (int64_t i = 1; i < n; ++i) {
      const float fade = fades_.Of(Position(i) - Position(i - 1));
      simd::AddScaledRow(before_ + (i - 1) * head_dim_, fade, before_ + i * head_dim_, head_dim_);
      before_weights_[i] += fade * before_weights_[i - 1];
    }
    for (int64_t i = n - 2; i >= 0; --i) {
      const float fade = fades_.Of(Position(i + 1) - Position(i));
      simd::AddScaledRow(after_ + (i + 1) * head_dim_, fade, after_ + i * head_dim_, head_dim_);
      after_weights_[i] += fade * after_weights_[i + 1];
    }
  }

  /// What moves a token between rows next - 1 and next.
  simd::TokenMove MoveOf(int32_t token, int64_t next) const {
    simd::TokenMove move{nothing_, nothing_};
    float weights = spread_.anywhere * static_cast<float>(range_.num_rows);
    bool is_near = false;
    if (next > 0) {
      const int32_t distance = token - Position(next - 1);
      is_near = fades_.Reaches(distance);
      move.before = before_ + (next - 1) * head_dim_;
      move.before_factor = fades_.Of(distance);
      weights += move.before_factor * before_weights_[next - 1];
    }
    if (next < range_.num_rows) {
      const int32_t distance = Position(next) - token;
      is_near = is_near || fades_.Reaches(distance);
      move.after = after_ + next * head_dim_;
      move.after_factor = fades_.Of(distance);
      weights += move.after_factor * after_weights_[next];
    }
    if (!is_near) return {nothing_, nothing_};
    const float scale = 1 / (spread_.reserve + weights);
    move.before_factor *= scale;
    move.after_factor *= scale;
    move.all_factor = spread_.anywhere * scale;
    return move;
  }

  /// Tokens [begin, end) of one page; `next` goes on to the first row that is not before `end`.
  void MoveBlock(int32_t begin, int32_t end, int64_t& next) {
    std::array<simd::TokenMove, kBlock> moves;
    bool any = false;
    for (int32_t token = begin; token < end; ++token) {
      const bool is_row = next < range_.num_rows && Position(next) == token;
      if (is_row) ++next;
      moves[token - begin] = is_row ? simd::TokenMove{nothing_, nothing_} : MoveOf(token, next);
      any = any || moves[token - begin].before != moves[token - begin].after;
    }
    if (!any) return;
    const int64_t tokens = end - begin;
    simd::SumMoves(moves.data(), tokens, all_, head_dim_, block_);
    if (is_keys_) {
      for (int64_t t = 0; t < tokens; ++t) {
        if (moves[t].before == moves[t].after) continue;
        const int64_t position = begin + t;
        simd::RotateHeads(target_.rope.layout(), target_.rope.cos(position), target_.rope.sin(position),
                          head_dim_, 1, block_ + t * head_dim_);
      }
    }
    Add(begin, tokens);
  }

  void Add(int32_t begin, int64_t tokens) const {
    const int64_t slot = Slot(begin);
    if (held_.dtype == DataType::kInt8) return AddToCodes(begin, tokens);
    if (held_.layout == PageLayout::kRows) {
      return simd::AddToRow(block_, tokens * head_dim_,
                            static_cast<std::byte*>(held_.data) + slot * SizeOf(held_.dtype), held_.dtype);
    }
    if (is_keys_) return AddToKeys(slot, tokens);
    // Words at the ends of a range may be shared with another, which another thread moves.
    const int64_t odd = begin % 2, pairs = (tokens - odd) / 2;
    if (odd != 0) AddAlone(slot, block_);
    if (pairs > 0) {
      auto* words = static_cast<uint16_t*>(held_.data) + held_.Index(slot + odd * head_dim_, 0);
      simd::AddToPairs(block_ + odd * head_dim_, pairs, head_dim_, reinterpret_cast<uint32_t*>(words));
    }
    if (const int64_t last = odd + 2 * pairs; last < tokens)
      AddAlone(slot + last * head_dim_, block_ + last * head_dim_);
  }

  void AddToKeys(int64_t slot, int64_t tokens) const {
    if (tokens == kBlock) {
      auto* column = static_cast<uint16_t*>(held_.data) + held_.Index(slot, 0);
      return simd::AddToKeyColumns(block_, head_dim_, reinterpret_cast<uint32_t*>(column));
    }
    for (int64_t t = 0; t < tokens; ++t) AddAlone(slot + t * head_dim_, block_ + t * head_dim_);
  }

  /// One token of layout kTiles.
  void AddAlone(int64_t slot, const float* move) const {
    auto* elements = static_cast<uint16_t*>(held_.data);
    for (int64_t d = 0; d < head_dim_; ++d) {
      if (move[d] == 0) continue;
      uint16_t& element = elements[held_.Index(slot, d)];
      element = F32ToBf16(Bf16ToF32(element) + move[d]);
    }
  }

  void AddToCodes(int32_t begin, int64_t tokens) const {
    auto* head = ThreadScratch<float>(ScratchSlot::kDecoded, head_dim_);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* move = block_ + t * head_dim_;
      if (std::all_of(move, move + head_dim_, [](float value) { return value == 0; })) continue;
      const auto position = static_cast<int32_t>(begin + t);
      Load(position, head);
      simd::AddScaledRow(move, 1.0f, head, head_dim_);
      simd::QuantizeHead(head, head_dim_, held_.CodesAt(Slot(position)), held_.StepsAt(Slot(position)));
    }
  }

  const KvTarget& target_;
  const RangeRows& range_;
  const DeviationSpread& spread_;
  const Fades& fades_;
  const ConstMatrixView fresh_;
  const PageValues held_;
  const bool is_keys_;
  const int32_t head_;
  const int64_t head_dim_;
  // All f32: [rows, head_dim] twice, [head_dim] twice, of which the second are zeros, [kBlock, head_dim],
  // [rows] twice.
  float *before_, *after_, *all_, *nothing_, *block_, *before_weights_, *after_weights_;
};

}  // namespace

void CpuSpreadDeviation(CpuContext& context, const KvTarget& target, absl::Span<const ColumnRange> ranges,
                        const DeviationSpread& keys, const DeviationSpread& values, ConstMatrixView k,
                        ConstMatrixView v) {
  const std::vector<RangeRows> to_move = PartlyComputedRanges(
      absl::MakeConstSpan(target.plan.positions(), static_cast<size_t>(target.plan.num_rows())), ranges);
  if (to_move.empty()) return;
  const Fades key_fades(keys), value_fades(values);
  const int64_t heads = target.pages.num_kv_heads;
  context.pool.ParallelFor(static_cast<int64_t>(to_move.size()) * heads * 2, [&](int64_t task) {
    const bool is_keys = task % 2 == 0;
    const auto head = static_cast<int32_t>(task / 2 % heads);
    HeadOfRange(target, to_move[task / 2 / heads], is_keys ? keys : values, is_keys ? key_fades : value_fades,
                is_keys ? k : v, is_keys, head)
        .Spread();
  });
}

}  // namespace kvblend::kernels
