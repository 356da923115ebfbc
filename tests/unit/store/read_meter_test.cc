#include "engine/store/read_meter.h"

#include <gtest/gtest.h>

namespace kvblend::store {
namespace {

TEST(MeasuredRate, IsTheMedianByAmountAndForgetsTheOldest) {
  MeasuredRate rate;
  EXPECT_FALSE(rate.seconds_per_unit().has_value());
  rate.Add(0, 1);
  rate.Add(1, 0);
  EXPECT_FALSE(rate.seconds_per_unit().has_value());
  rate.Add(10, 20);
  rate.Add(10, 30);
  rate.Add(10, 1000);  // a hiccup
  EXPECT_DOUBLE_EQ(*rate.seconds_per_unit(), 3);
  rate.Add(100, 500);  // counts more than the others together
  EXPECT_DOUBLE_EQ(*rate.seconds_per_unit(), 5);
  for (size_t i = 0; i < MeasuredRate::kMaxSamples; ++i) rate.Add(1, 7);
  EXPECT_DOUBLE_EQ(*rate.seconds_per_unit(), 7);
}

class ReadMeterTest : public testing::Test {
 protected:
  void Pass(double seconds) { now_ += absl::Seconds(seconds); }
  absl::Time now_ = absl::UnixEpoch();
  ReadMeter meter_{[this] { return now_; }};
};

TEST_F(ReadMeterTest, ReadsThatOverlapShareTheTimeAndIdleTimeDoesNotCount) {
  EXPECT_TRUE(meter_.Rates().empty());
  meter_.Begin(Tier::kDisk);
  Pass(1);
  meter_.Begin(Tier::kDisk);
  Pass(1);
  meter_.End(Tier::kDisk, 300);
  Pass(1);
  meter_.End(Tier::kDisk, 300);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 200);
  Pass(20);
  meter_.Begin(Tier::kDisk);
  Pass(1);
  meter_.End(Tier::kDisk, 200);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 200);
}

TEST_F(ReadMeterTest, ALongLoadCountsBeforeItIsOver) {
  for (int i = 0; i < 3; ++i) meter_.Begin(Tier::kDisk);
  Pass(2);
  meter_.End(Tier::kDisk, int64_t{8} << 20);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, int64_t{4} << 20);
}

TEST_F(ReadMeterTest, TimeOfReadsThatFailCountsAgainstTheTier) {
  meter_.Begin(Tier::kDisk);
  Pass(3);
  meter_.End(Tier::kDisk, 0);
  EXPECT_TRUE(meter_.Rates().empty());
  meter_.Begin(Tier::kDisk);
  Pass(1);
  meter_.End(Tier::kDisk, 400);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 100);
}

TEST_F(ReadMeterTest, WhatWasLongAgoIsForgottenWithTheNextRead) {
  for (int i = 0; i < 20; ++i) {
    meter_.Begin(Tier::kDisk);
    Pass(1);
    meter_.End(Tier::kDisk, 10);
  }
  EXPECT_TRUE(meter_.Rates().at(Tier::kDisk).recent);
  Pass(61);
  EXPECT_FALSE(meter_.Rates().at(Tier::kDisk).recent);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 10);  // better than nothing
  meter_.Begin(Tier::kDisk);
  Pass(1);
  meter_.End(Tier::kDisk, 1);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 1);
  EXPECT_TRUE(meter_.Rates().at(Tier::kDisk).recent);
}

TEST_F(ReadMeterTest, TiersAreMeasuredApart) {
  meter_.Begin(Tier::kDisk);
  meter_.Begin(Tier::kHostMemory);
  Pass(1);
  meter_.End(Tier::kDisk, 5);
  meter_.End(Tier::kHostMemory, 50);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kDisk).bytes_per_second, 5);
  EXPECT_DOUBLE_EQ(meter_.Rates().at(Tier::kHostMemory).bytes_per_second, 50);
}

}  // namespace
}  // namespace kvblend::store
