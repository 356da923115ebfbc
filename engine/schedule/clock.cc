#include "engine/schedule/clock.h"

#include "base/steady_time.h"

namespace kvblend::schedule {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time Now() override { return SteadyNow(); }
  void Wait(absl::CondVar& condition, absl::Mutex& mutex, absl::Time deadline) override {
    condition.WaitWithTimeout(&mutex, deadline - SteadyNow());
  }
};

}  // namespace

Clock& Clock::System() {
  static SystemClock* const clock = new SystemClock;
  return *clock;
}

}  // namespace kvblend::schedule
