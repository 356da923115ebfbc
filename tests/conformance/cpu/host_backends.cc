// The backends of kernels_conformance_test: "reference", "cpu_f32", "cpu_int16_attention" (with VNNI and
// without) and, where the processor has it, "cpu_bf16". Where it multiplies bf16 in vectors, these tiles are
// there for themselves too, and those of AMX, emulated.
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/base/config.h"
#include "gmock/gmock.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/simd.h"
#include "tests/conformance/harness.h"

#ifdef KVBLEND_HAVE_AMX_EMULATION
#include "tests/amx_emulation/emulated_tiles.h"
#endif

namespace kvblend::kernels {
namespace {

using Gemm = CpuBackendOptions::Gemm;

// More threads than this suite's smallest machine has processors, so that they interleave.
constexpr int kNumThreads = 3;

#ifdef KVBLEND_HAVE_AMX_EMULATION
class TilesAreReleased : public testing::Environment {
 public:
  void TearDown() override {
    const amx_emulation::Counts counts = amx_emulation::Executed();
    std::cout << counts.products << " products of emulated AMX tiles" << std::endl;
    EXPECT_EQ(counts.configured, counts.released);
    if (GTEST_FLAG_GET(filter) != "*") return;
    EXPECT_GT(counts.products, 0);
  }
};

std::unique_ptr<Backend> MakeEmulatedAmx(const Tiles& vectors) {
  testing::AddGlobalTestEnvironment(new TilesAreReleased());
  static const Tiles tiles = amx_emulation::WithEmulatedProducts(vectors);
  return CreateCpuBackendWithTiles({.num_threads = kNumThreads, .gemm = Gemm::kBF16}, tiles).value();
}
#endif

}  // namespace

std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends() {
  std::map<std::string, std::unique_ptr<Backend>> backends;
  backends.emplace("reference", CreateReferenceBackend());
  auto f32 = CreateCpuBackend({.num_threads = kNumThreads, .gemm = Gemm::kF32});
  if (!f32.ok()) {
    std::cerr << f32.status() << std::endl;
    std::abort();
  }
  backends.emplace("cpu_f32", *std::move(f32));
  const Tiles *codes = simd::GetInt16Tiles(), *without_vnni = simd::GetInt16TilesWithoutVnni();
  const auto with_codes = [](const Tiles& tiles) {  // attention as with products of codes
    return CreateCpuBackendWithTiles({.num_threads = kNumThreads, .gemm = Gemm::kF32}, tiles).value();
  };
  if (codes != nullptr) backends.emplace("cpu_int16_attention", with_codes(*codes));
  if (codes != without_vnni) backends.emplace("cpu_int16_attention_without_vnni", with_codes(*without_vnni));
  auto bf16 = CreateCpuBackend({.num_threads = kNumThreads, .gemm = Gemm::kBF16});
  if (bf16.ok()) backends.emplace("cpu_bf16", *std::move(bf16));
  const Tiles& vectors = simd::GetTiles(kBF16);
  if (vectors.dtype != kBF16) return backends;
  if (&vectors != &BestTiles(kBF16)) {
    backends.emplace(
        "cpu_bf16_vectors",
        CreateCpuBackendWithTiles({.num_threads = kNumThreads, .gemm = Gemm::kBF16}, vectors).value());
  }
#ifdef KVBLEND_HAVE_AMX_EMULATION
  backends.emplace("cpu_amx_emulated", MakeEmulatedAmx(vectors));
#endif
  return backends;
}

bool IsUnderTest([[maybe_unused]] const std::string& name) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  return name != "reference";  // has one thread, and would take most of the time here
#else
  return true;
#endif
}

// The suite leaves out what its processor lacks: here that shows.
TEST(TestBackendsTest, ProductsOfBf16AreAmongThem) {
  const auto bf16 = CreateCpuBackend({.num_threads = 1, .gemm = Gemm::kBF16});
  if (!bf16.ok() && std::getenv("KVBLEND_CPU") != nullptr) {  // it was told to do without
    EXPECT_THAT(TestBackendNames(), testing::Each(testing::Not(testing::HasSubstr("bf16"))));
    return;
  }
  if (!bf16.ok()) GTEST_SKIP() << "the suite runs in f32 alone: " << bf16.status().message();
  if (simd::GetTiles(kBF16).dtype != kBF16) {
    GTEST_SKIP() << "attention runs in f32 tiles alone, AMX's are not emulated: no AVX512-BF16 for vectors";
  }
  EXPECT_THAT(TestBackendNames(), testing::Contains("cpu_bf16"));
#ifdef KVBLEND_HAVE_AMX_EMULATION
  EXPECT_THAT(TestBackendNames(), testing::Contains("cpu_amx_emulated"));
#endif
}

}  // namespace kvblend::kernels
