#include "kernels/cpu/machine/processors.h"

#include <sched.h>

#include <thread>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

TEST(ProcessorsTest, APinnedThreadStaysAndOthersDoNot) {
  const std::vector<int> before = AllowedProcessors();
  ASSERT_FALSE(before.empty());
  std::thread([&] {
    ASSERT_TRUE(PinThisThread(before.back()));
    EXPECT_EQ(AllowedProcessors(), std::vector<int>{before.back()});
    EXPECT_EQ(sched_getcpu(), before.back());
  }).join();
  EXPECT_EQ(AllowedProcessors(), before);
}

TEST(ProcessorsTest, ProcessorsThatAreNotThereAreRefused) {
  for (const int processor : {-1, 1 << 20}) EXPECT_FALSE(PinThisThread(processor));
}

TEST(ProcessorsTest, BackendPinsItsWorkersAndComputesTheSame) {
  const auto pinned = CreateCpuBackend({.num_threads = 3, .pin_threads = true}),
             free = CreateCpuBackend({.num_threads = 3});
  ASSERT_OK(pinned.status());
  ASSERT_OK(free.status());
  EXPECT_NE((*pinned)->Describe().find("3 threads, pinned"), std::string::npos) << (*pinned)->Describe();
  EXPECT_EQ((*free)->Describe().find("pinned"), std::string::npos);
  const std::vector<int> before = AllowedProcessors();
  std::vector<std::vector<std::byte>> results;
  for (Backend* backend : {pinned->get(), free->get()}) {
    Rng rng(3);
    Tensor x(*backend, DataType::kF32, 70, 96), matrix(*backend, DataType::kF32, 520, 96),
        out(*backend, DataType::kF32, 70, 520);
    x.Randomize(rng);
    matrix.Randomize(rng);
    const auto weights = Pack(*backend, matrix, WeightUsage::kLinear);
    ASSERT_OK(backend->Linear(TestStream(*backend), x.view(), *weights, false, out.view()));
    results.push_back(out.Bytes());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(AllowedProcessors(), before);  // the caller's stay as they were
}

}  // namespace
}  // namespace kvblend::kernels
