// Random schedules, held to the rules that scheduler.h gives:
//  - every accepted job runs to its end or is abandoned, once;
//  - none starts when its deadline can no longer be met, and none is abandoned that could still have met it;
//  - no starvation: where K keys have interactive work of one priority and key k's takes W_k seconds
//    together, all of k's is done after at most 21/16 (p K (W_k + u) + 2 u + S) + 3 u seconds, whatever else
//    the others have: u is what cannot be interrupted (a unit where any number of jobs may be in progress;
//    where N may, N whole ones, since a key waits for a place), and S the first steps of all jobs together,
//    since each is started as soon as there is room; p is 21/16 for a high priority, 21/4 for a normal and 21
//    for a low one, and 1 where there is no other. (Keys share evenly, so when k is done no other of its
//    priority has had more than W_k and one u; the other priorities get all but 16, 4 or 1 of 21 parts of the
//    lane's time, and the other lanes 5 of 21 parts of all.) Jobs that wait for something take nobody's time:
//    only the keys whose jobs they are are later, by what they wait;
//  - who is cancelled in progress ends within a unit.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {
namespace {

struct ModelJob {
  std::string key;
  Lane lane = Lane::kInteractive;
  Priority priority = Priority::kNormal;
  int units = 1;
  double unit = 0;  // seconds of each
  double predicted = 0;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time waits_until = absl::InfinitePast();  // for something that is on its way
  absl::Time cancelled_at = absl::InfiniteFuture();
  // What became of it.
  int ran = 0, ends = 0;
  absl::Time started, ended;
  absl::Status status;

  double work() const { return units * unit; }
  absl::Time latest_start() const { return deadline - absl::Seconds(predicted / 2); }
};

class Schedule {
 public:
  static constexpr int kAnyNumber = 1000;

  Schedule(int seed, int max_in_progress, bool priorities, bool waits = false)
      : random_(seed), max_in_progress_(max_in_progress), priorities_(priorities), waits_(waits) {}

  void Run(bool deadlines) {
    const int num_keys = 1 + Below(5);
    for (int i = 0; i < 60; ++i) jobs_.push_back(RandomJob(num_keys, deadlines));
    Scheduler scheduler({.max_queued = 1000,
                         .max_queued_background = 1000,
                         .max_in_progress = {max_in_progress_, max_in_progress_, max_in_progress_}},
                        clock_);
    // All are waiting before the first one begins.
    absl::Notification all_wait, begun;
    Job first;
    first.lane = Lane::kBulk;
    first.advance = [&] {
      begun.Notify();
      all_wait.WaitForNotification();
      return false;
    };
    first.abandon = [](const absl::Status& status) { FAIL() << status; };
    ASSERT_TRUE(scheduler.Submit(std::move(first)).ok());
    begun.WaitForNotification();
    start_ = clock_.Now();
    for (ModelJob& job : jobs_) {
      const absl::Status status = scheduler.Submit(JobOf(job)).status();
      if (!status.ok()) {
        job.status = status;
        job.ended = start_;
        ++job.ends;
        EXPECT_LE(job.latest_start(), start_) << status;
      }
    }
    all_wait.Notify();
    ASSERT_TRUE(scheduler.Drain(absl::InfiniteFuture()).ok());
    EXPECT_EQ(scheduler.waiting_tokens(), 0);
    EXPECT_EQ(scheduler.predicted_wait(), absl::ZeroDuration());
  }

  void CheckEnds() const {
    for (const ModelJob& job : jobs_) {
      EXPECT_EQ(job.ends, 1);
      if (absl::IsCancelled(job.status)) {
        EXPECT_LE(job.ended, std::max(job.cancelled_at, job.started) + absl::Seconds(kLongestUnit));
        continue;
      }
      EXPECT_EQ(job.ran, job.status.ok() ? job.units : 0) << job.status;
      if (job.status.ok()) {
        EXPECT_LT(job.started, job.latest_start());
      } else {
        EXPECT_TRUE(absl::IsDeadlineExceeded(job.status)) << job.status;
        EXPECT_GE(job.ended, job.latest_start());
      }
    }
  }

  void CheckBound() const {
    constexpr double kWeights[] = {16, 4, 1};
    using Class = std::pair<Priority, std::string>;
    std::map<Class, double> work, waited;
    std::map<Priority, int> num_keys;
    double longest = 0, first_units = 0;
    for (const ModelJob& job : jobs_) {
      if (job.lane == Lane::kInteractive) {
        const auto [of_key, is_new] = work.try_emplace(Class(job.priority, job.key), 0);
        num_keys[job.priority] += is_new ? 1 : 0;
        of_key->second += job.work();
        double& wait = waited[Class(job.priority, job.key)];
        wait = std::max(wait, absl::ToDoubleSeconds(job.waits_until - start_));
        if (max_in_progress_ > 1) first_units += job.unit;
      }
      longest = std::max(longest, max_in_progress_ == kAnyNumber ? job.unit : max_in_progress_ * job.work());
    }
    for (const ModelJob& job : jobs_) {
      if (job.lane != Lane::kInteractive || absl::IsCancelled(job.status)) continue;
      const int keys = num_keys[job.priority];
      const double of_others = num_keys.size() == 1 ? 1 : 21 / kWeights[static_cast<int>(job.priority)];
      const double bound = 21.0 / 16 *
                               (of_others * keys * (work[Class(job.priority, job.key)] + longest) +
                                2 * longest + first_units) +
                           3 * longest + waited[Class(job.priority, job.key)];
      EXPECT_LE(absl::ToDoubleSeconds(job.ended - start_), bound)
          << "key " << job.key << " of " << keys << ", priority " << static_cast<int>(job.priority);
    }
  }

 private:
  static constexpr double kLongestUnit = 0.1, kPoll = 0.001;

  int Below(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }

  ModelJob RandomJob(int num_keys, bool deadlines) {
    ModelJob job;
    // The first key has most of the jobs, and long ones.
    const int key = Below(2) == 0 ? 0 : Below(num_keys);
    job.key = absl::StrCat("k", key);
    job.lane =
        std::vector<Lane>{Lane::kInteractive, Lane::kInteractive, Lane::kBulk, Lane::kBackground}[Below(4)];
    if (priorities_) job.priority = kPriorities[Below(3)];
    job.units = 1 + Below(key == 0 ? 40 : 10);
    job.unit = 0.01 * (1 + Below(10));
    job.predicted = job.work() * 0.1 * Below(21);
    if (deadlines && Below(2) == 0) job.deadline = clock_.Now() + absl::Seconds(0.5 * Below(200));
    if (waits_ && Below(4) == 0) job.waits_until = clock_.Now() + absl::Seconds(0.1 * Below(300));
    if (waits_ && Below(6) == 0) job.cancelled_at = clock_.Now() + absl::Seconds(0.1 * Below(300));
    return job;
  }

  Job JobOf(ModelJob& model) {
    Job job;
    job.fairness_key = model.key;
    job.lane = model.lane;
    job.priority = model.priority;
    job.deadline = model.deadline;
    job.predicted_seconds = model.predicted;
    job.queue_seconds = model.predicted;
    job.tokens = model.units;
    job.seconds_left = [this, &model] {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      if (clock_.Now() >= model.cancelled_at) return -kInfinity;
      return clock_.Now() < model.waits_until ? kInfinity : (model.units - model.ran) * model.unit;
    };
    job.advance = [this, &model, begun = false]() mutable {
      if (!std::exchange(begun, true)) model.started = clock_.Now();
      if (clock_.Now() >= model.cancelled_at) {
        model.status = absl::CancelledError("");
        model.ended = clock_.Now();
        ++model.ends;
        return false;
      }
      if (clock_.Now() < model.waits_until) {
        clock_.Advance(absl::Seconds(kPoll));
        return true;
      }
      clock_.Advance(absl::Seconds(model.unit));
      if (++model.ran < model.units) return true;
      model.ended = clock_.Now();
      ++model.ends;
      return false;
    };
    job.abandon = [this, &model](const absl::Status& status) {
      model.status = status;
      model.ended = clock_.Now();
      ++model.ends;
    };
    return job;
  }

  FakeClock clock_;
  std::mt19937 random_;
  const int32_t max_in_progress_;
  const bool priorities_, waits_;
  std::vector<ModelJob> jobs_;
  absl::Time start_;
};

TEST(SchedulingModelTest, NoKeyStarves) {
  for (int seed = 0; seed < 40; ++seed) {
    for (const int max_in_progress : {1, 4, Schedule::kAnyNumber}) {
      for (const bool priorities : {false, true}) {
        SCOPED_TRACE(
            absl::StrCat("seed ", seed, ", in progress ", max_in_progress, ", priorities ", priorities));
        Schedule schedule(seed, max_in_progress, priorities);
        schedule.Run(/*deadlines=*/false);
        schedule.CheckEnds();
        schedule.CheckBound();
      }
    }
  }
}

TEST(SchedulingModelTest, WhoWaitsIsOvertakenAndWhoIsCancelledEnds) {
  for (int seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Schedule schedule(seed, Schedule::kAnyNumber, /*priorities=*/seed % 2 == 0, /*waits=*/true);
    schedule.Run(/*deadlines=*/false);
    schedule.CheckEnds();
    schedule.CheckBound();
  }
}

TEST(SchedulingModelTest, DeadlinesEndWhatCannotMeetThemAndNothingElse) {
  for (int seed = 0; seed < 40; ++seed) {
    for (const int max_in_progress : {1, 3, 1000}) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", in progress ", max_in_progress));
      Schedule schedule(seed, max_in_progress, /*priorities=*/true);
      schedule.Run(/*deadlines=*/true);
      schedule.CheckEnds();
    }
  }
}

}  // namespace
}  // namespace kvblend::schedule
