// StreamClock: times of a stream's work, on every backend.
#include <memory>
#include <vector>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

class StreamClockConformance : public ConformanceTest {
 protected:
  // Seconds between neighbouring marks around some work, nothing, and more work.
  std::vector<double> Measure() {
    Tensor x = Random(64, 96), out(backend, kF32, 64, 96);
    const std::unique_ptr<StreamClock> clock = backend.CreateStreamClock(stream);
    const auto mark = [&](size_t number) {
      const absl::StatusOr<size_t> marked = clock->Mark();
      EXPECT_OK(marked.status());
      EXPECT_EQ(*marked, number);
    };
    const auto work = [&](int times) {
      for (int i = 0; i < times; ++i) {
        EXPECT_OK(backend.GatherRows(stream, x.view(), {{3, 1, 2}}, out.view().Rows(0, 3)));
      }
    };
    mark(0);
    work(1);
    mark(1);
    mark(2);
    work(100);
    mark(3);
    EXPECT_OK(backend.Synchronize(stream));
    std::vector<double> seconds;
    for (size_t i = 0; i < 3; ++i) seconds.push_back(clock->SecondsBetween(i, i + 1).value());
    const double all = clock->SecondsBetween(0, 3).value();
    EXPECT_NEAR(seconds[0] + seconds[1] + seconds[2], all, 1e-5);  // a device's clock ticks coarsely
    return seconds;
  }
};

TEST_P(StreamClockConformance, TimesAddUpAndWorkTakesSome) {
  for (int round = 0; round < 2; ++round) {  // the second clock may have what the first one used
    const std::vector<double> seconds = Measure();
    EXPECT_GE(seconds[0], 0);
    EXPECT_GE(seconds[1], 0);
    EXPECT_GT(seconds[2], 0);
  }
}

TEST_P(StreamClockConformance, ClocksSideBySideTellTheSame) {
  const std::unique_ptr<StreamClock> one = backend.CreateStreamClock(stream),
                                     other = backend.CreateStreamClock(stream);
  Tensor x = Random(64, 96), out(backend, kF32, 3, 96);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(one->Mark().status());
    ASSERT_OK(other->Mark().status());
    ASSERT_OK(backend.GatherRows(stream, x.view(), {{3, 1, 2}}, out.view()));
  }
  ASSERT_OK(backend.Synchronize(stream));
  EXPECT_GE(one->SecondsBetween(0, 1).value(), 0);
  EXPECT_GE(other->SecondsBetween(0, 1).value(), 0);
}

INSTANTIATE_CONFORMANCE(StreamClockConformance);

}  // namespace
}  // namespace kvblend::kernels
