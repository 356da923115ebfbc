// What CreateCpuBackend and CreateBackend accept, and what the backends say of themselves.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

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

TEST(CpuBackendTest, DescribesItself) {
  const auto backend = CreateBackend("cpu", 2);
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->name(), "cpu");
  EXPECT_NE((*backend)->Describe().find("2 threads"), std::string::npos) << (*backend)->Describe();
  EXPECT_EQ((*CreateBackend("reference", 1))->name(), "reference");
}

}  // namespace
}  // namespace kvblend::kernels
