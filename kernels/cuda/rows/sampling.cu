// SampleTokens: a block takes a row. The same whole numbers as in kernels/host/sample_row.cc, ranked instead
// of sorted, so the tokens are the same.
#include "kernels/cuda/device/sampling.h"
#include "kernels/cuda/rows/ranking.h"
#include "kernels/host/deterministic_exp.h"

namespace kvblend::kernels::cuda {
namespace {

template <int n>
inline constexpr double kInverseFactorial = InverseFactorial(n);

/// r^n / n! + .. + r^13 / 13!, divided by r^n, by Horner's rule.
template <int n>
KVBLEND_DEVICE double ExpSeries(double r) {
  if constexpr (n == 13) {
    return kInverseFactorial<n>;
  } else {
    return AddRn(MulRn(ExpSeries<n + 1>(r), r), kInverseFactorial<n>);
  }
}

/// DeterministicExp, operation by operation.
KVBLEND_DEVICE double DeviceExp(double x) {
  if (x < -708.0) return 0.0;
  const double k = SubRn(AddRn(MulRn(x, 1.4426950408889634), 6755399441055744.0), 6755399441055744.0);
  const double r =
      SubRn(SubRn(x, MulRn(k, 6.93147180369123816490e-01)), MulRn(k, 1.90821492927058770002e-10));
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(k) + 1023);
  return MulRn(ExpSeries<0>(r), DoubleFromBits(exponent << 52));
}

KVBLEND_DEVICE uint64_t DeviceWeight(double x, double unit) {
  return static_cast<uint64_t>(AddRn(MulRn(DeviceExp(x), unit), 0.5));
}

KVBLEND_DEVICE uint64_t CeilToInteger(double x) {
  const auto floor = static_cast<uint64_t>(x);
  return static_cast<double>(floor) < x ? floor + 1 : floor;
}

KVBLEND_DEVICE bool IsFinite(float value) { return (FloatBits(value) & 0x7F800000u) != 0x7F800000u; }

KVBLEND_DEVICE float Changed(float logit, const LogitChange& change, double penalty) {
  constexpr double kLargest = 3.4028234663852886e38;
  double changed = static_cast<double>(logit);
  if (change.repeated) changed = changed > 0 ? DivRn(changed, penalty) : MulRn(changed, penalty);
  changed = AddRn(changed, static_cast<double>(change.added));
  changed = changed < -kLargest ? -kLargest : (changed > kLargest ? kLargest : changed);
  return static_cast<float>(changed);
}

struct Best {
  float value;
  int index;

  KVBLEND_DEVICE void Take(float other, int other_index) {
    if (other > value || (other == value && other_index < index)) *this = {other, other_index};
  }
};

/// The largest value(i) of 0 .. n-1, and the first i that has it, in every thread. No value is NaN.
template <typename Value>
KVBLEND_DEVICE Best FindBest(RankScratch scratch, int n, const Value& value) {
  Best best{FloatFromBits(0xFF800000u), 0x7FFFFFFF};
  for (int i = ThreadIndex(); i < n; i += kRankThreads) best.Take(value(i), i);
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const float other = ShuffleXor(best.value, mask);
    const int index = ShuffleXor(best.index, mask);
    best.Take(other, index);
  }
  SyncThreads();
  if (Lane() == 0) {
    scratch.warps[Warp()] = uint64_t{FloatBits(best.value)} << 32 | static_cast<uint32_t>(best.index);
  }
  SyncThreads();
  for (int warp = 0; warp < kRankWarps; ++warp) {
    const uint64_t other = scratch.warps[warp];
    best.Take(FloatFromBits(static_cast<uint32_t>(other >> 32)), static_cast<int>(other & 0xFFFFFFFFu));
  }
  return best;
}

/// Steps 2 to 6 of kernels/sampling.h. `weights` [n] is written.
KVBLEND_DEVICE int Draw(RankScratch scratch, const RowSampling& row, const float* logits, int n, float max,
                        double unit, uint64_t* weights) {
  const auto key = [&](int i) { return OrderedKey(logits[i]); };
  const auto weight = [&](int i) { return weights[i]; };
  const bool has_top_k = row.top_k > 0 && row.top_k < n;
  Highest kept{0, n};
  if (has_top_k) kept = FindHighest(scratch, n, key, row.top_k);
  // What a filter removes weighs nothing.
  const double largest = static_cast<double>(max), least = MulRn(row.min_p, unit);
  uint64_t total = 0, left = 0;
  for (int i = ThreadIndex(); i < n; i += kRankThreads) {
    uint64_t w = 0;
    if (kept.Contains(key(i), i)) {
      w = DeviceWeight(DivRn(SubRn(static_cast<double>(logits[i]), largest), row.temperature), unit);
    }
    total += w;
    if (static_cast<double>(w) < least) w = 0;
    left += w;
    weights[i] = w;
  }
  total = BlockSum(total, scratch);  // and shows what the other threads wrote
  left = BlockSum(left, scratch);
  if (row.top_p < 1) {
    const uint64_t wanted = CeilToInteger(MulRn(row.top_p, static_cast<double>(total)));
    if (wanted < left) {
      const Rank rank = FindDescending(scratch, n, key, weight, wanted - 1);
      const auto tie = [&](int i) { return key(i) == rank.key ? weights[i] : uint64_t{0}; };
      left = rank.before + FindInOrder(scratch, n, tie, wanted - 1 - rank.before).through;
    }
  }
  auto target = static_cast<uint64_t>(MulRn(row.uniform, static_cast<double>(left)));
  if (target >= left) target = left - 1;
  if (!has_top_k && row.top_p >= 1) return FindInOrder(scratch, n, weight, target).index;
  const Rank rank = FindDescending(scratch, n, key, weight, target);
  const auto tie = [&](int i) { return key(i) == rank.key ? weights[i] : uint64_t{0}; };
  return FindInOrder(scratch, n, tie, target - rank.before).index;
}

/// The `count` most likely tokens, in order.
KVBLEND_DEVICE void ReportTop(RankScratch scratch, SharedArray<float> top_logits,
                              SharedArray<int32_t> top_ids, const float* logits, int n, int count,
                              SampledToken& out) {
  const auto key = [&](int i) { return OrderedKey(logits[i]); };
  const Highest highest = FindHighest(scratch, n, key, count);
  Collect(
      scratch, n, [&](int i) { return highest.Contains(key(i), i); },
      [&](int slot, int i) {
        top_ids[slot] = i;
        top_logits[slot] = logits[i];
      });
  SyncThreads();
  if (ThreadIndex() < count) {
    const float logit = top_logits[ThreadIndex()];
    int place = 0;  // ids ascend with the slots
    for (int other = 0; other < count; ++other) {
      const float other_logit = top_logits[other];
      if (other_logit > logit || (other_logit == logit && other < ThreadIndex())) ++place;
    }
    out.top_ids[place] = top_ids[ThreadIndex()];
    out.top_logits[place] = logit;
  }
}

KVBLEND_KERNEL(kRankThreads, 1) SampleKernel(SampleParams p) {
  SharedArena arena;
  const RankScratch scratch = RankScratch::Take(arena);
  const auto top_logits = arena.Take<float>(kMaxTopTokens);
  const auto top_ids = arena.Take<int32_t>(kMaxTopTokens);
  const RowSampling row = p.rows[BlockX()];
  const int n = static_cast<int>(p.logits.cols);
  const double unit = static_cast<double>(uint64_t{1} << WeightBits(n));
  const float* logits = static_cast<const float*>(p.logits.data) + BlockX() * p.logits.row_stride;
  SampledToken& out = p.out[BlockX()];
  const bool first = ThreadIndex() == 0;

  const Best invalid = FindBest(scratch, n, [&](int i) { return IsFinite(logits[i]) ? 0.0f : 1.0f; });
  if (first) out.invalid_token = invalid.value > 0 ? invalid.index : -1;
  if (invalid.value > 0) {  // of the whole block
    if (first) out.invalid_logit = logits[invalid.index];
    return;
  }
  const Best likeliest = FindBest(scratch, n, [&](int i) { return logits[i]; });
  Best best = likeliest;
  const float* drawn_from = logits;
  if (row.changed_row >= 0) {
    float* changed = p.changed_logits + int64_t{row.changed_row} * n;
    for (int i = ThreadIndex(); i < n; i += kRankThreads) changed[i] = logits[i];
    SyncThreads();
    for (int j = row.changes_begin + ThreadIndex(); j < row.changes_end; j += kRankThreads) {
      const LogitChange change = p.changes[j];
      changed[change.token_id] = Changed(logits[change.token_id], change, row.repetition_penalty);
    }
    SyncThreads();
    drawn_from = changed;
    best = FindBest(scratch, n, [&](int i) { return drawn_from[i]; });
  }
  int token = best.index;
  if (row.weights_row >= 0) {
    token = Draw(scratch, row, drawn_from, n, best.value, unit, p.weights + int64_t{row.weights_row} * n);
  }
  if (first) {
    out.token_id = token;
    out.logit = logits[token];
    out.scored_logit = row.scored_token >= 0 ? logits[row.scored_token] : 0.0f;
  }
  if (row.num_top < 0) return;  // of the whole block
  uint64_t sum = 0;
  const auto largest = static_cast<double>(likeliest.value);
  for (int i = ThreadIndex(); i < n; i += kRankThreads) {
    sum += DeviceWeight(SubRn(static_cast<double>(logits[i]), largest), unit);
  }
  sum = BlockSum(sum, scratch);
  const int count = Min(row.num_top, n);
  if (first) {
    out.max_logit = likeliest.value;
    out.weight_sum = sum;
    out.num_top = count;
  }
  if (count > 0) ReportTop(scratch, top_logits, top_ids, logits, n, count, out);
}

}  // namespace

LaunchError LaunchSample(StreamHandle stream, const SampleParams& params) {
  constexpr int kSharedBytes = kRankSharedBytes + 2 * static_cast<int>(RoundUp(kMaxTopTokens * 4, 16));
  return Launch<SampleKernel>(
      stream, {.blocks_x = params.logits.rows, .threads = kRankThreads, .shared_bytes = kSharedBytes},
      params);
}

}  // namespace kvblend::kernels::cuda
