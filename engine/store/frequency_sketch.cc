#include "engine/store/frequency_sketch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace kvblend::store {

// A key is a SHA-256: any of its bits are as good as another hash function's.
std::array<size_t, FrequencySketch::kRows> FrequencySketch::PlacesOf(const ChunkKey& key) const {
  std::array<size_t, kRows> places;
  for (size_t row = 0; row < kRows; ++row) {
    uint32_t bits;
    std::memcpy(&bits, key.digest().data() + row * sizeof(bits), sizeof(bits));
    places[row] = row * width_ + (bits & (width_ - 1));
  }
  return places;
}

void FrequencySketch::Widen() {
  std::vector<uint8_t> wider(kRows * 2 * width_);
  for (size_t row = 0; row < kRows; ++row) {
    const auto begin = counts_.begin() + static_cast<std::ptrdiff_t>(row * width_);
    for (size_t half = 0; half < 2; ++half) {
      std::copy_n(begin, width_, wider.begin() + static_cast<std::ptrdiff_t>((2 * row + half) * width_));
    }
  }
  counts_ = std::move(wider);
  width_ *= 2;
}

void FrequencySketch::Record(const ChunkKey& key, int64_t num_entries) {
  if (width_ < kPlacesPerEntry * static_cast<size_t>(num_entries) && width_ < kMaxWidth) Widen();
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
