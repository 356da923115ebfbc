// Ranks the numbers of one block without sorting them: which element stands at a given place when they are
// ordered from high to low, by how many there are or by what they weigh; and collects the chosen ones in
// order. Whole numbers throughout, so no result depends on the order of additions. For .cu files whose blocks
// have kRankThreads threads.
//
// Every thread counts in a column of shared memory of its own, so no atomics are needed and no two lanes meet
// in a bank.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace kvblend::kernels::cuda {

inline constexpr int kRankThreads = 512;
inline constexpr int kRankWarps = kRankThreads / kWarpSize;
inline constexpr int kDigitBits = 4;
inline constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kRankWarps);  // a warp sums up a digit

struct RankScratch {
  SharedArray<uint64_t> bins;    // [kDigits][kRankThreads]
  SharedArray<uint64_t> digits;  // [kDigits]
  SharedArray<uint64_t> warps;   // [kRankWarps]
  SharedArray<uint64_t> found;   // [2]

  KVBLEND_DEVICE static RankScratch Take(SharedArena& arena) {
    RankScratch scratch;
    scratch.bins = arena.Take<uint64_t>(kDigits * kRankThreads);
    scratch.digits = arena.Take<uint64_t>(kDigits);
    scratch.warps = arena.Take<uint64_t>(kRankWarps);
    scratch.found = arena.Take<uint64_t>(2);
    return scratch;
  }
};
inline constexpr int kRankSharedBytes = (kDigits * kRankThreads + kDigits + kRankWarps + 2) * 8;

/// Keys that order as the numbers do; both zeros are one number. `value` is not NaN.
KVBLEND_DEVICE uint32_t OrderedKey(float value) {
  const uint32_t bits = value == 0 ? 0 : FloatBits(value);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// A warp's share of 0 .. n-1: runs that follow each other.
struct WarpRange {
  int begin, end;

  KVBLEND_DEVICE static WarpRange Of(int n) {
    const int share = (n + kRankThreads - 1) / kRankThreads * kWarpSize;
    const int begin = Warp() * share;
    return {Min(begin, n), Min(begin + share, n)};
  }
};

/// The sum over the block, in every thread.
KVBLEND_DEVICE uint64_t BlockSum(uint64_t value, RankScratch scratch) {
  value = WarpSum(value);
  SyncThreads();
  if (Lane() == 0) scratch.warps[Warp()] = value;
  SyncThreads();
  uint64_t sum = 0;
  for (int warp = 0; warp < kRankWarps; ++warp) sum += scratch.warps[warp];
  return sum;
}

struct Rank {
  uint32_t key;     // of the element that was looked for
  uint64_t before;  // measure of all with larger keys
};

/// From high keys to low: where the running sum of measure(i) first exceeds `target`. key and measure take
/// 0 .. n-1. REQUIRES: the sum over all is above `target`
template <typename Key, typename Measure>
KVBLEND_DEVICE Rank FindDescending(RankScratch scratch, int n, const Key& key, const Measure& measure,
                                   uint64_t target) {
  Rank rank{0, 0};
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int digit = 0; digit < kDigits; ++digit) scratch.bins[digit * kRankThreads + ThreadIndex()] = 0;
    for (int i = ThreadIndex(); i < n; i += kRankThreads) {
      const uint32_t k = key(i);
      if (((k ^ rank.key) >> shift >> kDigitBits) != 0) continue;  // larger digits differ
      const int digit = static_cast<int>(k >> shift & (kDigits - 1));
      scratch.bins[digit * kRankThreads + ThreadIndex()] += measure(i);
    }
    SyncThreads();
    uint64_t sum = 0;
    for (int column = Lane(); column < kRankThreads; column += kWarpSize) {
      sum += scratch.bins[Warp() * kRankThreads + column];
    }
    sum = WarpSum(sum);
    if (Lane() == 0) scratch.digits[Warp()] = sum;
    SyncThreads();
    int digit = kDigits - 1;
    for (; digit > 0; --digit) {
      const uint64_t through = rank.before + scratch.digits[digit];
      if (through > target) break;
      rank.before = through;
    }
    rank.key |= static_cast<uint32_t>(digit) << shift;
  }
  return rank;
}

struct Place {
  int index;
  uint64_t through;  // measure of 0 .. index
};

/// From 0 on: where the running sum of measure(i) first exceeds `target`. REQUIRES: the sum over all does
template <typename Measure>
KVBLEND_DEVICE Place FindInOrder(RankScratch scratch, int n, const Measure& measure, uint64_t target) {
  const WarpRange range = WarpRange::Of(n);
  uint64_t sum = 0;
  for (int i = range.begin + Lane(); i < range.end; i += kWarpSize) sum += measure(i);
  sum = WarpSum(sum);
  SyncThreads();
  if (Lane() == 0) scratch.warps[Warp()] = sum;
  SyncThreads();
  uint64_t before = 0;
  int owner = 0;
  for (; owner < kRankWarps - 1; ++owner) {
    const uint64_t through = before + scratch.warps[owner];
    if (through > target) break;
    before = through;
  }
  if (Warp() == owner) {
    for (int first = range.begin; first < range.end; first += kWarpSize) {
      const int i = first + Lane();
      const uint64_t through = before + WarpInclusiveSum(i < range.end ? measure(i) : uint64_t{0});
      const uint32_t beyond = Ballot(through > target);
      if (beyond != 0) {
        if (Lane() == FirstSet(beyond)) {
          scratch.found[0] = static_cast<uint64_t>(i);
          scratch.found[1] = through;
        }
        break;
      }
      before = Shuffle(through, kWarpSize - 1);
    }
  }
  SyncThreads();
  return {static_cast<int>(scratch.found[0]), scratch.found[1]};
}

/// The `count` first of those with the highest keys: equal keys by their numbers.
struct Highest {
  uint32_t key;
  int last;  // of those with this key

  KVBLEND_DEVICE bool Contains(uint32_t k, int i) const { return k > key || (k == key && i <= last); }
};

/// REQUIRES: 1 <= count <= n
template <typename Key>
KVBLEND_DEVICE Highest FindHighest(RankScratch scratch, int n, const Key& key, int count) {
  const auto target = static_cast<uint64_t>(count - 1);
  const Rank rank = FindDescending(
      scratch, n, key, [](int) { return uint64_t{1}; }, target);
  const auto is_tie = [&](int i) { return static_cast<uint64_t>(key(i) == rank.key ? 1 : 0); };
  return {rank.key, FindInOrder(scratch, n, is_tie, target - rank.before).index};
}

/// Calls emit(slot, i) for every i of 0 .. n-1 that is chosen; slots count from 0, ascending with i.
template <typename Chosen, typename Emit>
KVBLEND_DEVICE void Collect(RankScratch scratch, int n, const Chosen& chosen, const Emit& emit) {
  const WarpRange range = WarpRange::Of(n);
  int count = 0;
  for (int i = range.begin + Lane(); i < range.end; i += kWarpSize) count += chosen(i) ? 1 : 0;
  count = WarpSum(count);
  SyncThreads();
  if (Lane() == 0) scratch.warps[Warp()] = static_cast<uint64_t>(count);
  SyncThreads();
  int slot = 0;
  for (int warp = 0; warp < Warp(); ++warp) slot += static_cast<int>(scratch.warps[warp]);
  for (int first = range.begin; first < range.end; first += kWarpSize) {
    const int i = first + Lane();
    const bool taken = i < range.end && chosen(i);
    const uint32_t lanes = Ballot(taken);
    if (taken) emit(slot + CountBits(lanes & ((uint32_t{1} << Lane()) - 1)), i);
    slot += CountBits(lanes);
  }
}

}  // namespace kvblend::kernels::cuda
