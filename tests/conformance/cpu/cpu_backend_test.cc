// What CreateCpuBackend and CreateBackend accept, what the backends say of themselves, and what their threads
// must not change.
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
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

// Whatever types the processor makes it choose for activations, codes and values: it multiplies weights that
// are no codes to within a rounding of both sides to bf16, few rows and many, of either dtype of its own.
TEST(CpuBackendTest, ByItselfItMultipliesWeightsThatAreNoCodes) {
  const auto backend = CreateCpuBackend({.num_threads = 3});
  ASSERT_OK(backend.status());
  Rng rng{20261129};
  constexpr int64_t kInputs = 136, kOutputs = 200;
  Tensor weights(**backend, kF32, kOutputs, kInputs);
  weights.Randomize(rng);
  for (const WeightUsage usage :
       {WeightUsage::kLinear, WeightUsage::kTolerantLinear, WeightUsage::kVeryTolerantLinear}) {
    const auto packed = Pack(**backend, weights, usage);
    for (const int64_t rows : {1, 3, 40, 300}) {
      for (const DataType dtype : {kF32, (*backend)->compute_dtype()}) {
        SCOPED_TRACE(absl::StrCat(rows, " rows of ", std::string(Name(dtype))));
        Tensor x(**backend, dtype, rows, kInputs), out(**backend, kF32, rows, kOutputs);
        x.Randomize(rng);
        ASSERT_OK(
            (*backend)->Linear(TestStream(**backend), x.view(), *packed, /*accumulate=*/false, out.view()));
        ExpectElements(out, [&](int64_t row, int64_t col) -> Expected {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < kInputs; ++i) {
            sum += x.at(row, i) * weights.at(col, i);
            size += std::abs(x.at(row, i) * weights.at(col, i));
          }
          return {sum, 2.1 * UnitRoundoff(kBF16) * size};
        });
      }
    }
  }
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
