#include "server/main/end_of_process.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace kvblend::server {
namespace {

TEST(EndOfProcessDeathTest, EndsAProcessThatHangs) {
  EXPECT_EXIT(
      {
        const EndOfProcess end(absl::Seconds(1));
        while (true) pause();
      },
      testing::ExitedWithCode(1), "calls did not end after they were cancelled");
}

TEST(EndOfProcessDeathTest, OneThatEndsInTimeGoesOn) {
  EXPECT_EXIT(
      {
        { const EndOfProcess end(absl::ZeroDuration()); }
        sleep(2);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace kvblend::server
