#include "server/calls/engine_slot.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

// The slot passes the pointer on and never follows it.
Engine* SomeEngine() {
  static int place = 0;
  return reinterpret_cast<Engine*>(&place);
}

TEST(EngineSlotTest, StartsServesDrainsAndNeverGoesBack) {
  EngineSlot slot;
  EXPECT_EQ(slot.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(slot.NotServingReason(), HasSubstr("starting"));
  slot.Serve(SomeEngine());
  ASSERT_TRUE(slot.Get().ok());
  EXPECT_EQ(*slot.Get(), SomeEngine());
  EXPECT_EQ(slot.NotServingReason(), "");
  slot.Drain();
  EXPECT_EQ(slot.Get().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(slot.NotServingReason(), HasSubstr("shutting down"));
  slot.Serve(SomeEngine());
  EXPECT_FALSE(slot.Get().ok());
}

}  // namespace
}  // namespace kvblend::server
