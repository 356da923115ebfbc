// What CreateCpuBackend and CreateBackend accept, what the backends say of themselves, and what their threads
// must not change.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

TEST(CpuBackendTest, OptionsAreChecked) {
  for (const int num_threads : {-1, 100000}) {
    const auto backend = CreateCpuBackend({.num_threads = num_threads});
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(backend.status().message().find(std::to_string(num_threads)), absl::string_view::npos);
  }
  const auto backend = CreateBackend("gpu", 1);
  EXPECT_TRUE(absl::StartsWith(backend.status().message(), "device is 'gpu'; allowed: auto, cpu"));
}

#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
// The process lives on where it may start fewer threads than it is to have: here their stacks find no room.
TEST(CpuBackendTest, ThreadsThatCannotBeStartedAreAnError) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto create_many = [] {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
    const auto backend = CreateCpuBackend({.num_threads = 1000});
    std::cerr << backend.status() << std::endl;
    std::exit(absl::IsResourceExhausted(backend.status()) ? 0 : 1);
  };
  EXPECT_EXIT(create_many(), testing::ExitedWithCode(0), "num_threads is 1000, of which the system lets");
}
#endif

TEST(CpuBackendTest, DescribesItself) {
  const auto backend = CreateBackend("cpu", 2);
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->name(), "cpu");
  EXPECT_NE((*backend)->Describe().find("2 threads"), std::string::npos) << (*backend)->Describe();
  EXPECT_EQ((*CreateBackend("reference", 1))->name(), "reference");
}

// An answer does not depend on the machine that gives it, nor on what is decoded beside it.
TEST(CpuBackendTest, DecodingGivesTheSameBitsWithAnyNumberOfThreads) {
  for (const auto& [pages, page_size] : {std::pair{kF32, 16}, {kBF16, 16}, {kBF16, 64}}) {
    const BatchCase batch{.sequences = {{1700, {1699}}, {70, {69}}, {900, {898, 899}}},
                          .page_size = page_size};
    std::vector<std::byte> expected;
    for (const int num_threads : {1, 2, 7}) {
      SCOPED_TRACE(
          absl::StrCat(std::string(Name(pages)), ", page_size ", page_size, ", ", num_threads, " threads"));
      const auto backend = CreateCpuBackend({.num_threads = num_threads}).value();
      {
        Rng rng(3);
        PagedBatch kv(*backend, batch, 4, 64, pages, rng);
        Tensor q(*backend, kF32, 4, 8 * 64);
        q.Randomize(rng);
        Tensor out = Attend(kv, q, 8, 0.125f);
        if (expected.empty()) expected = out.Bytes();
        EXPECT_TRUE(out.Bytes() == expected);
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
