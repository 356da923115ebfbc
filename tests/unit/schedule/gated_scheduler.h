// A scheduler whose thread is held by a first job until all others are queued, so that their order does not
// depend on time.
#pragma once

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {

class GatedSchedulerTest : public ::testing::Test {
 protected:
  /// `options.max_queued` is set so that nothing is refused.
  void Start(Scheduler::Options options) {
    options.max_queued = 1000;
    scheduler_ = std::make_unique<Scheduler>(options, clock_);
    Job gate;
    gate.fairness_key = "gate";
    gate.advance = [this] {
      busy_.Notify();
      gate_.WaitForNotification();
      return false;
    };
    gate.abandon = [](const absl::Status&) {};
    ASSERT_TRUE(scheduler_->Submit(std::move(gate)).ok());
    busy_.WaitForNotification();
  }
  /// Until everything is done.
  void Run() {
    gate_.Notify();
    ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
  }

  FakeClock clock_;
  absl::Notification busy_, gate_;
  std::string order_;  // of turns, as jobs note them
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace kvblend::schedule
