#include "engine/store/frequency_sketch.h"

#include <algorithm>

namespace kvblend::store {

// A key is a SHA-256: any of its bits are as good as another hash function's.
std::array<size_t, FrequencySketch::kRows> FrequencySketch::PlacesOf(const ChunkKey& key) {
  std::array<size_t, kRows> places;
  for (size_t row = 0; row < kRows; ++row) {
    const size_t column = size_t{key.digest()[2 * row]} << 8 | key.digest()[2 * row + 1];
    places[row] = row * kWidth + column;
  }
  return places;
}

void FrequencySketch::Record(const ChunkKey& key, int64_t num_entries) {
  const std::array<size_t, kRows> places = PlacesOf(key);
  const int64_t count = Estimate(key);
  if (count < kMaxCount) {
    // Only the lowest counts are raised: the others have been raised for other keys already.
    for (const size_t place : places) {
      if (counts_[place] == count) ++counts_[place];
    }
  }
  if (++since_halving_ < std::max(kMinPeriod, kPeriodPerEntry * num_entries)) return;
  since_halving_ = 0;
  for (uint8_t& stored : counts_) stored /= 2;
}

int64_t FrequencySketch::Estimate(const ChunkKey& key) const {
  int64_t lowest = kMaxCount;
  for (const size_t place : PlacesOf(key)) lowest = std::min<int64_t>(lowest, counts_[place]);
  return lowest;
}

}  // namespace kvblend::store
