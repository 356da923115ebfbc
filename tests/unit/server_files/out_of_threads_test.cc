#include "base/out_of_threads.h"

#include <stdexcept>
#include <thread>

#include "gtest/gtest.h"

namespace kvblend {
namespace {

// On a thread of its own, where nothing of the test's catches it.
template <typename Error>
void Throw(const Error& error) {
  SayWhenOutOfThreads("program");
  std::thread([&error] { throw Error(error); }).join();
}

class OutOfThreadsDeathTest : public testing::Test {
 protected:
  OutOfThreadsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(OutOfThreadsDeathTest, OneLineNamesWhatIsShort) {
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EXIT(Throw(no_thread), testing::ExitedWithCode(1),
              "^program: can't start a thread: Resource temporarily unavailable; allowed: [^\n]*\n$");
}

TEST_F(OutOfThreadsDeathTest, OtherErrorsThatNobodyCatchesAbort) {
  EXPECT_EXIT(Throw(std::logic_error("wrong")), testing::KilledBySignal(SIGABRT), "");
  EXPECT_EXIT(Throw(std::system_error(std::make_error_code(std::errc::io_error))),
              testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace kvblend
