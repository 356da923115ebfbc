#include "engine/store/frequency_sketch.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

TEST(FrequencySketchTest, CountsAndForgets) {
  FrequencySketch sketch;
  const ChunkKey key = SmallAddress(1).key;
  EXPECT_EQ(sketch.Estimate(key), 0);
  for (int i = 0; i < 9; ++i) sketch.Record(key, 0);
  EXPECT_EQ(sketch.Estimate(key), 9);
  EXPECT_EQ(sketch.Estimate(SmallAddress(2).key), 0);
  for (int64_t i = 9; i < FrequencySketch::kMinPeriod; ++i) sketch.Record(SmallAddress(3).key, 0);
  EXPECT_EQ(sketch.Estimate(key), 4);
  EXPECT_EQ(sketch.Estimate(SmallAddress(3).key), FrequencySketch::kMaxCount / 2);
}

TEST(FrequencySketchTest, ALargerStoreRemembersForLonger) {
  FrequencySketch sketch;
  const ChunkKey key = SmallAddress(1).key;
  constexpr int64_t kEntries = 1000;
  sketch.Record(key, kEntries);
  for (int64_t i = 1; i < FrequencySketch::kPeriodPerEntry * kEntries; ++i) {
    ASSERT_EQ(sketch.Estimate(key), 1);
    sketch.Record(SmallAddress(2).key, kEntries);
  }
  EXPECT_EQ(sketch.Estimate(key), 0);
}

// Against exact counts: never too low, and seldom too high.
TEST(FrequencySketchTest, EstimatesOfManyKeys) {
  std::mt19937_64 random(1);
  std::vector<ChunkKey> keys;
  for (int32_t token = 0; token < 5000; ++token) keys.push_back(SmallAddress(token).key);
  FrequencySketch sketch;
  std::map<ChunkKey, int64_t> exact;
  for (int i = 0; i < 40000; ++i) {
    const ChunkKey& key = keys[random() % (1 + random() % keys.size())];
    sketch.Record(key, /*num_entries=*/5000);
    ++exact[key];
  }
  int64_t too_high = 0;
  for (const auto& [key, count] : exact) {
    ASSERT_GE(sketch.Estimate(key), std::min<int64_t>(count, FrequencySketch::kMaxCount));
    too_high += sketch.Estimate(key) > std::min<int64_t>(count, FrequencySketch::kMaxCount) ? 1 : 0;
  }
  EXPECT_LT(too_high, static_cast<int64_t>(exact.size()) / 100);
}

// In a store of any size what was asked for once is known from what comes again.
TEST(FrequencySketchTest, GrowsWithTheStore) {
  std::mt19937_64 random(1);
  const auto any_key = [&] {
    Digest digest;
    for (uint8_t& byte : digest) byte = static_cast<uint8_t>(random());
    return ChunkKey(digest);
  };
  constexpr int64_t kEntries = 50000;
  FrequencySketch sketch;
  const ChunkKey popular = any_key();
  for (int i = 0; i < 5; ++i) sketch.Record(popular, /*num_entries=*/10);
  std::vector<ChunkKey> once;
  for (int64_t i = 0; i < 8 * kEntries; ++i) {
    once.push_back(any_key());
    sketch.Record(once.back(), kEntries);
  }
  EXPECT_GE(sketch.Estimate(popular), 5);
  int64_t too_high = 0;
  for (const ChunkKey& key : once) too_high += sketch.Estimate(key) > 1 ? 1 : 0;
  EXPECT_LT(too_high, static_cast<int64_t>(once.size()) / 100);
}

}  // namespace
}  // namespace kvblend::store
