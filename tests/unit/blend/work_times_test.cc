#include "engine/blend/costs/work_times.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::blend {
namespace {

/// Shows what a test sets; marks are readable once the stream has been synchronised.
class FakeClock final : public kernels::StreamClock {
 public:
  FakeClock(const double& now, const absl::Status& status) : now_(now), status_(status) {}
  absl::StatusOr<size_t> Mark() override {
    if (!status_.ok()) return status_;
    marks_.push_back(now_);
    return marks_.size() - 1;
  }
  absl::StatusOr<double> SecondsBetween(size_t begin, size_t end) override {
    return marks_[end] - marks_[begin];
  }

 private:
  const double& now_;
  const absl::Status& status_;
  std::vector<double> marks_;
};

class WorkTimesTest : public testing::Test {
 protected:
  double now = 0;
  absl::Status status;
  WorkTimes times{std::make_unique<FakeClock>(now, status)};
};

TEST_F(WorkTimesTest, EverySecondIsChargedToTheInnermostAccount) {
  const WorkTimes::Account pass = times.Open(), load = times.Open(), stall = times.Open();
  {
    const Charged outer(&times, pass);
    now += 1;
    {
      const Charged inner(&times, load);
      now += 2;
      {
        const Charged innermost(&times, stall);
        now += 4;
      }
      now += 8;
    }
    now += 16;
  }
  now += 32;  // others have their turn
  {
    const Charged again(&times, pass);
    now += 64;
  }
  ASSERT_TRUE(times.Settle().ok());
  EXPECT_EQ(times.Seconds(pass), 1 + 16 + 64);
  EXPECT_EQ(times.Seconds(load), 2 + 8);
  EXPECT_EQ(times.Seconds(stall), 4);
  EXPECT_EQ(times.Total(), 1 + 2 + 4 + 8 + 16 + 64);
}

TEST_F(WorkTimesTest, AnAccountMayBeReplacedWhileItIsChargedTo) {
  const WorkTimes::Account first = times.Open();
  WorkTimes::Account second = WorkTimes::kNobody;
  {
    const Charged step(&times, first);
    now += 1;
    second = times.Open();
    times.Charge(second);
    now += 2;
  }
  ASSERT_TRUE(times.Settle().ok());
  EXPECT_EQ(times.Seconds(first), 1);
  EXPECT_EQ(times.Seconds(second), 2);
  EXPECT_EQ(times.charged(), WorkTimes::kNobody);
}

TEST_F(WorkTimesTest, BooksOnce) {
  const WorkTimes::Account account = times.Open();
  for (int round = 1; round <= 2; ++round) {
    {
      const Charged charged(&times, account);
      now += 3;
    }
    ASSERT_TRUE(times.Settle().ok());
    EXPECT_EQ(times.Seconds(account), 3 * round);
  }
}

TEST_F(WorkTimesTest, AStreamThatFailsIsReportedWhenItIsSettled) {
  const WorkTimes::Account account = times.Open();
  status = absl::InternalError("the device is gone");
  { const Charged charged(&times, account); }
  status = absl::OkStatus();
  { const Charged charged(&times, account); }
  EXPECT_EQ(times.Settle(), absl::InternalError("the device is gone"));
}

TEST(ChargedTest, WithoutTimesNothingIsCharged) { const Charged charged(nullptr, WorkTimes::kNobody); }

}  // namespace
}  // namespace kvblend::blend
