// KVBLEND_CPU, in processes of their own: the first backend of a process decides.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace kvblend::kernels {
namespace {

class InstructionSetDeathTest : public testing::Test {
 protected:
  InstructionSetDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[noreturn]] static void TellBackend(const char* instruction_set) {
    setenv("KVBLEND_CPU", instruction_set, /*overwrite=*/1);
    const auto backend = CreateBackend("cpu", 1);
    // Asking what it runs on must not change that: the second answer counts.
    if (backend.ok()) (*backend)->Describe();
    std::cerr << (backend.ok() ? (*backend)->Describe() : backend.status().ToString()) << std::endl;
    std::exit(backend.ok() ? 0 : 3);
  }
};

TEST_F(InstructionSetDeathTest, PortableHidesWhatIsBetter) {
  EXPECT_EXIT(TellBackend("portable"), testing::ExitedWithCode(0), "GEMM in f32 .*sse41.*, SIMD SSE4");
}

TEST_F(InstructionSetDeathTest, Avx512HidesAmx) {
  if (!__builtin_cpu_supports("avx512bf16")) {
    EXPECT_EXIT(TellBackend("avx512"), testing::ExitedWithCode(__builtin_cpu_supports("avx512bw") ? 0 : 3),
                "");
  } else {
    EXPECT_EXIT(
        TellBackend("avx512"), testing::ExitedWithCode(0),
        __builtin_cpu_is("intel") ? "attention in int16_vnni tiles" : "attention in avx512_bf16 tiles");
  }
}

// In the words of --gemm and KVBLEND_CPU: an operator has never heard of enumerators, or of oneDNN.
TEST_F(InstructionSetDeathTest, AGemmThatIsNotHereIsNamedWithThoseThatAre) {
  const auto ask = [](const char* instruction_set, CpuBackendOptions::Gemm gemm) {
    setenv("KVBLEND_CPU", instruction_set, /*overwrite=*/1);
    std::cerr << CreateCpuBackend({.num_threads = 1, .gemm = gemm}).status() << std::endl;
    std::exit(3);
  };
  EXPECT_EXIT(ask("portable", CpuBackendOptions::Gemm::kInt8), testing::ExitedWithCode(3),
              "gemm is 'int8', which needs AVX2; this processor has portable; allowed here: auto, f32\n");
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2";
  EXPECT_EXIT(ask("avx2", CpuBackendOptions::Gemm::kBF16), testing::ExitedWithCode(3),
              "gemm is 'bf16', which needs AVX-512; this processor has avx2; "
              "allowed here: auto, f32, int16, int8\n");
}

TEST_F(InstructionSetDeathTest, UnknownNamesAreRefused) {
  EXPECT_EXIT(TellBackend("fast"), testing::ExitedWithCode(3),
              "KVBLEND_CPU is 'fast'; allowed: portable, avx2, avx_vnni, avx512, amx");
}

TEST_F(InstructionSetDeathTest, WhatTheProcessorLacksIsRefused) {
  std::ifstream file("/proc/cpuinfo");
  const std::string processor((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (absl::StrContains(processor, " amx_bf16")) {
    EXPECT_EXIT(TellBackend("amx"), testing::ExitedWithCode(0),
                "avx512_core_amx.*attention in amx_bf16 tiles");
  } else {
    EXPECT_EXIT(TellBackend("amx"), testing::ExitedWithCode(3), "does not have; allowed here: portable");
  }
}

}  // namespace
}  // namespace kvblend::kernels
