#include "engine/schedule/clock.h"

#include "absl/time/clock.h"

namespace kvblend::schedule {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void Wait(absl::CondVar& condition, absl::Mutex& mutex, absl::Time deadline) override {
    condition.WaitWithDeadline(&mutex, deadline);
  }
};

}  // namespace

Clock& Clock::System() {
  static SystemClock* const clock = new SystemClock;
  return *clock;
}

}  // namespace kvblend::schedule
