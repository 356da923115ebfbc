// The backend of kernels_cuda_emulated_test: the CUDA backend over the emulated device. When the whole suite
// has run, every kernel of the program must have: what is never executed is not tested.
#include <cstdio>

#include "kernels/cuda/cuda_backend.h"
#include "tests/conformance/harness.h"
#include "tests/cuda_emulation/launcher.h"
#include "tests/cuda_emulation/runtime.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

constexpr char kName[] = "cuda_emulated";

class AllKernelsRan : public testing::Environment {
 public:
  void TearDown() override {
    if (GTEST_FLAG_GET(filter) != "*") return;
    const std::vector<std::string> missing = cuda_emulation::KernelsNotExecuted();
    std::printf("%zu CUDA kernels, of which %zu were not executed\n", cuda_emulation::AllKernels().size(),
                missing.size());
    for (const std::string& kernel : missing) std::printf("  not executed: %s\n", kernel.c_str());
    EXPECT_TRUE(missing.empty());
  }
};

[[maybe_unused]] const testing::Environment* const kAllKernelsRan =
    testing::AddGlobalTestEnvironment(new AllKernelsRan());

}  // namespace

std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends() {
  std::map<std::string, std::unique_ptr<Backend>> backends;
  backends.emplace("reference", CreateReferenceBackend());
  // Not the device that threads have to begin with, so that an operation which does not see to it fails.
  backends.emplace(kName, CreateCudaBackend(1).value());
  return backends;
}

bool IsUnderTest(const std::string& name) { return name == kName; }

TEST(CudaBackendTest, DescribesItself) {
  Backend& backend = TestBackend(kName);
  EXPECT_EQ(backend.name(), "cuda");
  EXPECT_EQ(backend.compute_dtype(), kBF16);
  EXPECT_NE(backend.Describe().find("emulated"), std::string::npos) << backend.Describe();
}

TEST(CudaBackendTest, HostMemoryIsPinnedAndKept) {
  const auto fresh = CreateCudaBackend(1).value();
  void* first = fresh->AllocateHost(100'000);
  void* second = fresh->AllocateHost(100'000);
  EXPECT_TRUE(cuda_emulation::IsPinnedMemory(first));
  EXPECT_TRUE(cuda_emulation::IsPinnedMemory(static_cast<char*>(second) + 99'999));
  fresh->FreeHost(second, 100'000);
  const cuda_emulation::RuntimeCounts before = cuda_emulation::CountRuntimeObjects();
  EXPECT_EQ(fresh->AllocateHost(98'500), second);  // about as many bytes: the same block
  EXPECT_EQ(cuda_emulation::CountRuntimeObjects(), before);
  fresh->FreeHost(first, 100'000);
  fresh->FreeHost(second, 98'500);
  void* large = fresh->AllocateHost(int64_t{300} << 20);
  fresh->FreeHost(large, int64_t{300} << 20);  // more than is kept unused
  EXPECT_FALSE(cuda_emulation::IsPinnedMemory(large));
}

TEST(CudaBackendTest, FullDeviceMemoryIsResourceExhausted) {
  Backend& backend = TestBackend(kName);
  Rng rng(1);
  Tensor matrix(backend, kF32, 64, 64), x(backend, kF32, 64, 64);
  const auto weights = Pack(backend, matrix, WeightUsage::kLinear);
  const auto fresh = CreateCudaBackend(1).value();  // with no memory from earlier plans
  const int64_t limit = cuda_emulation::SetMemoryLimit(cuda_emulation::AllocatedBytes());
  const auto expect = [](const absl::Status& status, const char* operation) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_NE(status.message().find(operation), absl::string_view::npos) << status;
  };
  const std::vector<int32_t> indptr{0, 1}, zero{0}, one{1};
  const std::vector<float> inv_freq{1.0f}, two_ones{1.0f, 1.0f}, offsets(2 * kNumKvCorrectionPlaces);
  const test_support::RowFunction row([](int64_t, absl::Span<float>) { return absl::OkStatus(); });
  const auto stream = backend.CreateStream().value();
  expect(backend.Allocate(1).status(), "Allocate");
  expect(backend.PackWeights(4, 4, WeightUsage::kLinear, row).status(), "PackWeights");
  expect(backend.CreateRopeTable({RopeLayout::kInterleaved, 2, 16, inv_freq}).status(), "CreateRopeTable");
  expect(backend.CreateKvCorrection({1, 0, two_ones, offsets, {}, {}}).status(), "CreateKvCorrection");
  expect(fresh->PlanBatch({indptr, zero, one, indptr, zero, 16}).status(), "PlanBatch");
  expect(backend.Linear(*stream, x.view(), *weights, true, matrix.view()), "scratch memory");
  cuda_emulation::SetMemoryLimit(limit);
  // Memory that an earlier plan left makes room for a larger one.
  fresh->PlanBatch({indptr, zero, one, indptr, zero, 16}).value().reset();
  const int64_t full = cuda_emulation::AllocatedBytes();
  const std::vector<int32_t> many_pages(10'000, 0), to_all{0, 10'000};
  cuda_emulation::SetMemoryLimit(full + (64 << 10) - (16 << 10));
  EXPECT_TRUE(fresh->PlanBatch({indptr, zero, one, to_all, many_pages, 16}).ok());
  cuda_emulation::SetMemoryLimit(limit);
  EXPECT_TRUE(backend.Linear(*stream, x.view(), *weights, true, matrix.view()).ok());
  EXPECT_TRUE(backend.Synchronize(*stream).ok());
}

}  // namespace kvblend::kernels
