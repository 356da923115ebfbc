// How often chunks were asked for lately, those that are not in the store included.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/api/chunk_key.h"

namespace kvblend::store {

/// A count-min sketch with ageing: all counts are halved now and then, so that what was popular once does not
/// stay so. 256 KiB, whatever the number of keys; counts may be too high where keys collide, never too low.
/// (Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch", J. Algorithms 2005;
/// the ageing is TinyLFU's, see EvictionQueue.) Not thread-safe.
class FrequencySketch {
 public:
  static constexpr int32_t kMaxCount = 255;
  /// Counts are halved after this many records per entry that the store holds, at least kMinPeriod.
  static constexpr int64_t kPeriodPerEntry = 16;
  static constexpr int64_t kMinPeriod = 1024;

  FrequencySketch() : counts_(kRows * kWidth) {}

  /// One more time that somebody asked. `num_entries`: in the store now.
  void Record(const ChunkKey& key, int64_t num_entries);
  /// At most kMaxCount.
  int64_t Estimate(const ChunkKey& key) const;

 private:
  static constexpr size_t kRows = 4;
  static constexpr size_t kWidth = size_t{1} << 16;

  static std::array<size_t, kRows> PlacesOf(const ChunkKey& key);

  std::vector<uint8_t> counts_;
  int64_t since_halving_ = 0;
};

}  // namespace kvblend::store
