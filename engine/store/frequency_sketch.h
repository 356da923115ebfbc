// How often chunks were asked for lately, those that are not in the store included.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/api/chunk_key.h"

namespace kvblend::store {

/// A count-min sketch with ageing: all counts are halved now and then, so that what was popular once does
/// not stay so. Counts may be too high where keys collide, never too low. So that most are right it grows
/// with the store: 256 KiB, or up to 128 bytes for each entry that the store has had at a time.
/// (Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch", J. Algorithms 2005;
/// the ageing is TinyLFU's, see EvictionQueue.) Not thread-safe.
class FrequencySketch {
 public:
  static constexpr int32_t kMaxCount = 255;
  /// Counts are halved after this many records per entry that the store holds, at least kMinPeriod.
  static constexpr int64_t kPeriodPerEntry = 16;
  static constexpr int64_t kMinPeriod = 1024;

  FrequencySketch() : counts_(kRows * width_) {}

  /// One more time that somebody asked. `num_entries`: in the store now.
  void Record(const ChunkKey& key, int64_t num_entries);
  /// At most kMaxCount.
  int64_t Estimate(const ChunkKey& key) const;

 private:
  static constexpr size_t kRows = 4;
  /// Of a row, per entry. Between two halvings as many keys may be asked for once as there are records.
  static constexpr size_t kPlacesPerEntry = kPeriodPerEntry;
  static constexpr size_t kMaxWidth = size_t{1} << 26;

  std::array<size_t, kRows> PlacesOf(const ChunkKey& key) const;
  /// Twice as wide; every estimate stays what it was.
  void Widen();

  size_t width_ = size_t{1} << 16;  // of each row; a power of two
  std::vector<uint8_t> counts_;     // [row][place]
  int64_t since_halving_ = 0;
};

}  // namespace kvblend::store
