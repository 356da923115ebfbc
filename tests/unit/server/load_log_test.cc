#include "server/main/load_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;

class LoadLogTest : public ::testing::Test {
 protected:
  // `seconds` later.
  void Update(double seconds, int64_t done_mib, int64_t total_mib) {
    now_ += absl::Seconds(seconds);
    log_.Update(done_mib * kMiB, total_mib * kMiB);
  }

  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::string> lines_;
  LoadLog log_{"m.gguf", [this] { return now_; },
               [this](const std::string& line) { lines_.push_back(line); }};
};

TEST_F(LoadLogTest, SaysNothingOfAModelThatIsThereAtOnce) {
  for (int64_t mib = 1; mib <= 100; ++mib) Update(0.01, mib, 100);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(LoadLogTest, AFewLinesOfOneThatTakesLong) {
  for (int64_t mib = 1; mib <= 12; ++mib) Update(1, mib, 12);
  log_.Update(12 * kMiB, 12 * kMiB);
  EXPECT_THAT(lines_, ElementsAre("loading m.gguf: 5 of 12 MiB", "loading m.gguf: 10 of 12 MiB",
                                  "loading m.gguf: 12 of 12 MiB"));
}

}  // namespace
}  // namespace kvblend::server
