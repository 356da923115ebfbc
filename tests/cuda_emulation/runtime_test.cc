// The emulated runtime: memory, streams that run behind the host, launches that a device would refuse.
#include "tests/cuda_emulation/runtime.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/run_kernel.h"

namespace kvblend::kernels::cuda {
namespace {

struct FillParams {
  int32_t* out;
  int32_t value;
};

KVBLEND_KERNEL(32, 1) FillKernel(FillParams p) { p.out[Lane()] = Shuffle(p.value, 3) + Lane(); }

TEST(CudaEmulationRuntimeTest, WorkRunsInOrderWhenItIsWaitedFor) {
  const StreamHandle stream = *CreateDeviceStream();
  auto* data = static_cast<int32_t*>(*DeviceAllocate(32 * 4));
  std::vector<int32_t> source(32, 5), target(32, -1);
  ASSERT_TRUE(EnqueueCopyFromHost(stream, data, source.data(), 128).ok());
  source.assign(32, 6);  // has been read
  ASSERT_TRUE(EnqueueCopyToHost(stream, target.data(), data, 128).ok());
  ASSERT_TRUE(Launch<FillKernel>(stream, {.threads = 32}, FillParams{data, 100}).ok());
  EXPECT_EQ(target[0], -1);
  ASSERT_TRUE(SynchronizeStream(stream).ok());
  EXPECT_EQ(target, std::vector<int32_t>(32, 5));
  EXPECT_EQ(data[31], 131);
  ASSERT_TRUE(EnqueueZero(stream, data, 128).ok());
  DestroyDeviceStream(stream);  // waits
  EXPECT_EQ(data[31], 0);
  DeviceFree(data);
}

TEST(CudaEmulationRuntimeTest, FreeingWaitsForAllStreams) {
  const StreamHandle stream = *CreateDeviceStream();
  auto* data = static_cast<int32_t*>(*DeviceAllocate(32 * 4));
  ASSERT_TRUE(Launch<FillKernel>(stream, {.threads = 32}, FillParams{data, 1}).ok());
  DeviceFree(data);
  DestroyDeviceStream(stream);
}

TEST(CudaEmulationRuntimeTest, FullMemoryIsResourceExhausted) {
  const int64_t before = cuda_emulation::AllocatedBytes();
  const int64_t limit = cuda_emulation::SetMemoryLimit(before + 1000);
  void* data = *DeviceAllocate(600);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
  const auto more = DeviceAllocate(401);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(more.status().message().find("401"), absl::string_view::npos) << more.status();
  DeviceFree(data);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), before);
  DeviceFree(*DeviceAllocate(1000));
  cuda_emulation::SetMemoryLimit(limit);
}

TEST(CudaEmulationRuntimeTest, RefusesShapesThatADeviceRefuses) {
  const StreamHandle stream = *CreateDeviceStream();
  for (const LaunchShape& shape :
       {LaunchShape{.blocks_x = 0}, LaunchShape{.blocks_x = int64_t{1} << 31}, LaunchShape{.blocks_y = 65536},
        LaunchShape{.blocks_z = 65536}, LaunchShape{.threads = 33}, LaunchShape{.threads = 1056},
        LaunchShape{.threads = 0}, LaunchShape{.shared_bytes = kMaxSharedBytes + 1}}) {
    const LaunchError error = Launch<FillKernel>(stream, shape, FillParams{});
    EXPECT_FALSE(error.ok());
    EXPECT_EQ(StatusOf(error, "FillKernel").code(), absl::StatusCode::kInternal);
  }
  DestroyDeviceStream(stream);
}

TEST(CudaEmulationRuntimeTest, HostThreadsRunKernelsAtOnce) {
  std::vector<std::vector<int32_t>> out(4, std::vector<int32_t>(32));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) RunKernel<FillKernel>({.threads = 32}, FillParams{out[t].data(), t + i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) EXPECT_EQ(out[t][31], t + 49 + 31);
}

TEST(CudaEmulationRuntimeTest, PinnedMemoryIsReadWhenItsTurnComes) {
  const StreamHandle stream = *CreateDeviceStream();
  auto* data = static_cast<int32_t*>(*DeviceAllocate(4));
  auto* pinned = static_cast<int32_t*>(*PinnedAllocate(4));
  *pinned = 1;
  ASSERT_TRUE(EnqueueCopyFromHost(stream, data, pinned, 4).ok());
  *pinned = 2;
  ASSERT_TRUE(SynchronizeStream(stream).ok());
  EXPECT_EQ(*data, 2);
  DestroyDeviceStream(stream);
  PinnedFree(pinned);
  DeviceFree(data);
}

TEST(CudaEmulationRuntimeTest, StreamsWaitForEventsOfOthersAsTheyWereRecorded) {
  const StreamHandle one = *CreateDeviceStream(), other = *CreateDeviceStream();
  auto* data = static_cast<int32_t*>(*DeviceAllocate(32 * 4));
  std::vector<int32_t> seen(32, -1), early(32, -1);
  const EventHandle event = *CreateDeviceEvent(), never = *CreateDeviceEvent();
  EXPECT_TRUE(EventIsReached(never));
  ASSERT_TRUE(EnqueueZero(one, data, 128).ok());
  ASSERT_TRUE(RecordEvent(event, one).ok());
  EXPECT_FALSE(EventIsReached(event));
  ASSERT_TRUE(WaitForEvent(other, never).ok());
  ASSERT_TRUE(WaitForEvent(other, event).ok());
  ASSERT_TRUE(EnqueueCopyToHost(other, early.data(), data, 128).ok());
  ASSERT_TRUE(Launch<FillKernel>(one, {.threads = 32}, FillParams{data, 7}).ok());
  ASSERT_TRUE(RecordEvent(event, one).ok());
  // `other` waits for the first recording only, `seen` for the second.
  ASSERT_TRUE(SynchronizeStream(other).ok());
  EXPECT_EQ(early, std::vector<int32_t>(32, 0));
  EXPECT_FALSE(EventIsReached(event));
  ASSERT_TRUE(WaitForEvent(other, event).ok());
  ASSERT_TRUE(EnqueueCopyToHost(other, seen.data(), data, 128).ok());
  ASSERT_TRUE(SynchronizeStream(other).ok());
  EXPECT_EQ(seen[31], 38);
  EXPECT_TRUE(EventIsReached(event));
  DestroyDeviceEvent(event);
  DestroyDeviceEvent(never);
  DestroyDeviceStream(one);
  DestroyDeviceStream(other);
  DeviceFree(data);
}

TEST(CudaEmulationRuntimeTest, ThreadsMayRunStreamsThatWaitForEachOther) {
  const StreamHandle one = *CreateDeviceStream(), other = *CreateDeviceStream();
  const EventHandle ping = *CreateDeviceEvent(), pong = *CreateDeviceEvent();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(RecordEvent(ping, one).ok());
    ASSERT_TRUE(WaitForEvent(other, ping).ok());
    ASSERT_TRUE(RecordEvent(pong, other).ok());
    ASSERT_TRUE(WaitForEvent(one, pong).ok());
  }
  std::thread thread([&] { EXPECT_TRUE(SynchronizeStream(one).ok()); });
  EXPECT_TRUE(SynchronizeStream(other).ok());
  thread.join();
  EXPECT_TRUE(EventIsReached(ping) && EventIsReached(pong));
  for (const EventHandle event : {ping, pong}) DestroyDeviceEvent(event);
  for (const StreamHandle stream : {one, other}) DestroyDeviceStream(stream);
}

KVBLEND_KERNEL(32, 1) NeverRunKernel(FillParams p) { p.out[0] = 1; }

TEST(CudaEmulationRuntimeTest, ListsKernelsThatHaveNotRun) {
  const StreamHandle stream = *CreateDeviceStream();
  if (stream == nullptr) (void)Launch<NeverRunKernel>(stream, {}, FillParams{});
  int32_t out[32];
  RunKernel<FillKernel>({.threads = 32}, FillParams{out, 0});
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  EXPECT_TRUE(contains(cuda_emulation::AllKernels(), "FillKernel"));
  EXPECT_TRUE(contains(cuda_emulation::AllKernels(), "NeverRunKernel"));
  EXPECT_FALSE(contains(cuda_emulation::KernelsNotExecuted(), "FillKernel"));
  EXPECT_TRUE(contains(cuda_emulation::KernelsNotExecuted(), "NeverRunKernel"));
  DestroyDeviceStream(stream);
}

}  // namespace
}  // namespace kvblend::kernels::cuda
