// SpreadDeviation in two kernels: the sums of the rows' deviations from left to right and from right to left,
// a thread to a pair of channels, and then what moves each token, a warp to a token: the sums of the rows on
// its either side, faded by how far away these are, and the sum of all.
#include "kernels/cuda/device/page_slot.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

struct SpreadParams {
  PlanView plan;
  RopeView rope;
  SpreadRanges ranges;
  DeviationSpread spreads[2];  // of K and of V
  ConstMatrixView fresh[2];
  SpreadWorkspace sums;
  KvPagesView pages;

  KVBLEND_DEVICE void* Held(int part) const { return part == 0 ? pages.k : pages.v; }
  KVBLEND_DEVICE int64_t Cols() const { return int64_t{pages.num_kv_heads} * pages.head_dim; }
  /// Where a row of a range has its weights; where its sums begin, and those of a range.
  KVBLEND_DEVICE int64_t WeightOf(int part, const SpreadRange& range, int row) const {
    return int64_t{part} * sums.num_rows + range.first_sum + (row - range.first_row);
  }
  KVBLEND_DEVICE int64_t OfRow(int part, const SpreadRange& range, int row) const {
    return WeightOf(part, range, row) * Cols();
  }
  KVBLEND_DEVICE int64_t OfRange(int part, int range) const {
    return (int64_t{part} * kMaxSpreadRanges + range) * Cols();
  }
};

KVBLEND_DEVICE float Fade(const DeviationSpread& spread, int distance) {
  return Exp(-static_cast<float>(distance) / spread.reach);
}

// The two channels of a pair in its head.
struct PairChannels {
  int first, second;
};
KVBLEND_DEVICE PairChannels ChannelsOf(const RopeView& rope, int pair) {
  if (rope.interleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + rope.head_dim / 2};
}

// Block (range, head, part).
KVBLEND_KERNEL(kThreads, 8) SumDeviationsKernel(SpreadParams p) {
  const SpreadRange range = p.ranges.items[BlockX()];
  const int head = static_cast<int>(BlockY()), part = static_cast<int>(BlockZ());
  const DeviationSpread spread = p.spreads[part];
  const int half = p.pages.head_dim / 2, last = range.first_row + range.num_rows - 1;
  for (int pair = ThreadIndex(); pair < half; pair += kThreads) {
    const auto [first, second] = ChannelsOf(p.rope, pair);
    const int64_t column = int64_t{head} * p.pages.head_dim;
    float all0 = 0, all1 = 0, sum0 = 0, sum1 = 0, weight = 0;
    for (int row = last; row >= range.first_row; --row) {
      const int position = p.plan.positions[row];
      const int64_t slot = PageSlot(p.plan, p.pages, row, head);
      float held0 = LoadValue(p.Held(part), p.pages.dtype, slot + first),
            held1 = LoadValue(p.Held(part), p.pages.dtype, slot + second);
      if (part == 0) {
        const float* angles = p.rope.table + int64_t{position} * p.rope.head_dim + pair;
        const float cos = angles[0], sin = angles[half], squares = cos * cos + sin * sin;
        const float unrotated = (held0 * cos + held1 * sin) / squares;
        held1 = (held1 * cos - held0 * sin) / squares;
        held0 = unrotated;
      }
      const float* fresh =
          static_cast<const float*>(p.fresh[part].data) + row * p.fresh[part].row_stride + column;
      const float deviation0 = fresh[first] - held0, deviation1 = fresh[second] - held1;
      const float fade = row == last ? 0.0f : Fade(spread, p.plan.positions[row + 1] - position);
      sum0 = deviation0 + fade * sum0;
      sum1 = deviation1 + fade * sum1;
      weight = 1 + fade * weight;
      all0 += deviation0;
      all1 += deviation1;
      const int64_t to = p.OfRow(part, range, row) + column;
      p.sums.before[to + first] = deviation0;
      p.sums.before[to + second] = deviation1;
      p.sums.after[to + first] = sum0;
      p.sums.after[to + second] = sum1;
      if (pair == 0 && head == 0) p.sums.after_weights[p.WeightOf(part, range, row)] = weight;
    }
    const int64_t of_range = p.OfRange(part, static_cast<int>(BlockX())) + column;
    p.sums.all[of_range + first] = all0;
    p.sums.all[of_range + second] = all1;
    sum0 = sum1 = weight = 0;
    for (int row = range.first_row; row <= last; ++row) {
      const float fade =
          row == range.first_row ? 0.0f : Fade(spread, p.plan.positions[row] - p.plan.positions[row - 1]);
      const int64_t at = p.OfRow(part, range, row) + column;
      p.sums.before[at + first] = sum0 = p.sums.before[at + first] + fade * sum0;
      p.sums.before[at + second] = sum1 = p.sums.before[at + second] + fade * sum1;
      weight = 1 + fade * weight;
      if (pair == 0 && head == 0) p.sums.before_weights[p.WeightOf(part, range, row)] = weight;
    }
  }
}

// What moves a token: where the sums of the rows on its either side begin, and their factors.
struct Move {
  int64_t before, after;
  float before_factor, after_factor, all_factor;
  bool moves;
};
KVBLEND_DEVICE Move MoveOf(const SpreadParams& p, const SpreadRange& range, int part, int token, int next) {
  const DeviationSpread& spread = p.spreads[part];
  const float horizon = kSpreadReaches * spread.reach;
  // Where there is no row on a side, sums that are written: scratch memory times 0 might be NaN.
  const int64_t written = p.OfRow(part, range, range.first_row);
  Move move{written, written, 0, 0, 0, spread.anywhere > 0};
  float weights = spread.anywhere * static_cast<float>(range.num_rows);
  if (next > range.first_row) {
    const int distance = token - p.plan.positions[next - 1];
    move.before = p.OfRow(part, range, next - 1);
    move.before_factor = Fade(spread, distance);
    weights += move.before_factor * p.sums.before_weights[p.WeightOf(part, range, next - 1)];
    move.moves = move.moves || static_cast<float>(distance) <= horizon;
  }
  if (next < range.first_row + range.num_rows) {
    const int distance = p.plan.positions[next] - token;
    move.after = p.OfRow(part, range, next);
    move.after_factor = Fade(spread, distance);
    weights += move.after_factor * p.sums.after_weights[p.WeightOf(part, range, next)];
    move.moves = move.moves || static_cast<float>(distance) <= horizon;
  }
  const float scale = 1 / (spread.reserve + weights);
  move.before_factor *= scale;
  move.after_factor *= scale;
  move.all_factor = spread.anywhere * scale;
  return move;
}

// Block (tokens of a range, range): a warp takes a token.
KVBLEND_KERNEL(kThreads, 8) MoveTokensKernel(SpreadParams p) {
  const SpreadRange range = p.ranges.items[BlockY()];
  const int token = range.begin + static_cast<int>(BlockX()) * kWarps + Warp();
  if (token >= range.end) return;
  int next = range.first_row, end = range.first_row + range.num_rows;  // the first row not before the token
  const int last = end;
  while (next < end) {
    const int middle = (next + end) / 2;
    if (p.plan.positions[middle] < token) {
      next = middle + 1;
    } else {
      end = middle;
    }
  }
  if (next < last && p.plan.positions[next] == token) return;
  const int head_dim = p.pages.head_dim, half = head_dim / 2, pairs = half * p.pages.num_kv_heads;
  const int sequence = 0;
  for (int part = 0; part < 2; ++part) {
    const Move move = MoveOf(p, range, part, token, next);
    if (!move.moves) continue;
    const int64_t of_range = p.OfRange(part, static_cast<int>(BlockY()));
    for (int i = Lane(); i < pairs; i += kWarpSize) {
      const int head = i / half, pair = i - head * half;
      const auto [first, second] = ChannelsOf(p.rope, pair);
      const auto sum = [&](int channel) {
        const int64_t column = int64_t{head} * head_dim + channel;
        return move.before_factor * p.sums.before[move.before + column] +
               move.after_factor * p.sums.after[move.after + column] +
               move.all_factor * p.sums.all[of_range + column];
      };
      float moved0 = sum(first), moved1 = sum(second);
      if (part == 0) {
        const float* angles = p.rope.table + int64_t{token} * head_dim + pair;
        RotatePair(moved0, moved1, angles[0], angles[half]);
      }
      const int64_t slot = PageSlot(p.plan, p.pages, sequence, token, head);
      void* held = p.Held(part);
      const DataType dtype = p.pages.dtype;
      StoreValue(held, dtype, slot + first, LoadValue(held, dtype, slot + first) + moved0);
      StoreValue(held, dtype, slot + second, LoadValue(held, dtype, slot + second) + moved1);
    }
  }
}

}  // namespace

LaunchError LaunchSpreadDeviation(StreamHandle stream, const PlanView& plan, const RopeView& rope,
                                  const SpreadRanges& ranges, const DeviationSpread& keys,
                                  const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                  const SpreadWorkspace& workspace, const KvPagesView& pages) {
  const SpreadParams params{plan, rope, ranges, {keys, values}, {k, v}, workspace, pages};
  const LaunchError error = Launch<SumDeviationsKernel>(
      stream, {.blocks_x = ranges.count, .blocks_y = pages.num_kv_heads, .blocks_z = 2, .threads = kThreads},
      params);
  if (!error.ok()) return error;
  int64_t longest = 0;
  for (int32_t i = 0; i < ranges.count; ++i) {
    const int64_t tokens = ranges.items[i].end - ranges.items[i].begin;
    if (tokens > longest) longest = tokens;
  }
  return Launch<MoveTokensKernel>(
      stream, {.blocks_x = CeilDiv(longest, kWarps), .blocks_y = ranges.count, .threads = kThreads}, params);
}

}  // namespace kvblend::kernels::cuda
