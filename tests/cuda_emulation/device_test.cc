// Which device is opened, what a process may ask of it, and that every thread works on it.
#include "kernels/cuda/device/device.h"

#include <thread>

#include "gmock/gmock.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/runtime/memory.h"
#include "tests/cuda_emulation/runtime.h"

namespace kvblend::kernels {
namespace {

using cuda::DeviceInfo;
using testing::HasSubstr;

DeviceInfo Gpu(const char* name, int major) {
  DeviceInfo device = cuda_emulation::TwoDevices()[0];
  device.name = name;
  device.compute_major = major;
  return device;
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override { cuda_emulation::SetDevices(cuda_emulation::TwoDevices()); }
  void TearDown() override { SetUp(); }
};

void Expect(const absl::Status& status, absl::StatusCode code, const char* words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST_F(CudaDeviceTest, OpensTheDeviceAskedForOnceForTheProcess) {
  EXPECT_EQ(cuda::OpenDevice(1)->name, "emulated");
  EXPECT_TRUE(cuda::OpenDevice(1).ok());
  Expect(cuda::OpenDevice(0).status(), absl::StatusCode::kFailedPrecondition,
         "this process uses cuda:1 already");
}

TEST_F(CudaDeviceTest, RefusesWhatIsNotThereOrTooOld) {
  Expect(CreateCudaBackend(2).status(), absl::StatusCode::kInvalidArgument,
         "there is no CUDA device 2; visible are 2");
  Expect(CreateCudaBackend(-1).status(), absl::StatusCode::kInvalidArgument, "-1");
  cuda_emulation::SetDevices(std::vector<DeviceInfo>{Gpu("Old", 7), Gpu("New", 9)});
  Expect(CreateCudaBackend(0).status(), absl::StatusCode::kFailedPrecondition,
         "Old has compute capability 7.0; needed: at least 8.0");
  EXPECT_EQ((*CreateCudaBackend(1))->device_name(), "New");
  cuda_emulation::SetDevices(std::vector<DeviceInfo>{});
  Expect(CreateCudaBackend(0).status(), absl::StatusCode::kFailedPrecondition, "no CUDA device is visible");
  cuda_emulation::SetDevices(absl::FailedPreconditionError("the driver is too old"));
  Expect(CreateCudaBackend(0).status(), absl::StatusCode::kFailedPrecondition, "the driver is too old");
}

TEST_F(CudaDeviceTest, ChoosesAmongWhatTheProbeFinds) {
  cuda_emulation::SetDevices(std::vector<DeviceInfo>{Gpu("Old", 7), Gpu("New", 9)});
  const auto choice = ChooseDevice("auto", ProbeCudaDevices);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->name(), "cuda:1");
  EXPECT_EQ(choice->reason, "New with compute capability 9.0");
  cuda_emulation::SetDevices(absl::FailedPreconditionError("the driver is too old"));
  const auto fallback = ChooseDevice("auto", ProbeCudaDevices);
  ASSERT_TRUE(fallback.ok()) << fallback.status();
  EXPECT_EQ(fallback->name(), "cpu");
  EXPECT_EQ(fallback->reason, "no usable GPU: the driver is too old");
}

TEST_F(CudaDeviceTest, TellsItsMemory) {
  const auto backend = CreateCudaBackend(1).value();
  const DeviceMemory before = backend->device_memory().value();
  const auto buffer = backend->Allocate(1000).value();
  const DeviceMemory after = backend->device_memory().value();
  EXPECT_EQ(after.used_bytes - before.used_bytes, 1000);
  EXPECT_EQ(after.total_bytes, before.total_bytes);
  EXPECT_GE(after.total_bytes, after.used_bytes);
}

TEST_F(CudaDeviceTest, OperationsSeeToTheirThreadsDevice) {
  const auto backend = CreateCudaBackend(1).value();
  std::thread([&] {
    const auto buffer = backend->Allocate(4).value();
    const auto stream = backend->CreateStream().value();
    const float one = 1.0f;
    float back = 0.0f;
    EXPECT_TRUE(backend->CopyFromHost(*stream, buffer->data(), &one, 4).ok());
    EXPECT_TRUE(backend->CopyToHost(*stream, &back, buffer->data(), 4).ok());
    EXPECT_TRUE(backend->Synchronize(*stream).ok());
    EXPECT_EQ(back, 1.0f);
    EXPECT_TRUE(backend->device_memory().has_value());
  }).join();
}

using CudaDeviceDeathTest = CudaDeviceTest;

struct NoParams {
  int unused = 0;
};
KVBLEND_KERNEL(32, 1) NothingKernel(NoParams) {}

TEST_F(CudaDeviceDeathTest, AThreadOnAnotherDeviceIsFound) {
  const auto forget = [] {
    (void)cuda::OpenDevice(1);
    const cuda::StreamHandle stream = cuda::CreateDeviceStream().value();
    std::thread([stream] { (void)cuda::Launch<NothingKernel>(stream, {.threads = 32}, NoParams{}); }).join();
  };
  EXPECT_DEATH(forget(), "a launch on device 0 of a process that opened device 1");
}

}  // namespace
}  // namespace kvblend::kernels
