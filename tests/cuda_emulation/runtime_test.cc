// The emulated runtime: memory, streams that run behind the host, launches that a device would refuse.
#include "tests/cuda_emulation/runtime.h"

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
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

TEST(CudaEmulationRuntimeTest, GraphsRunWithTheBytesThatAreThereThen) {
  const StreamHandle stream = *CreateDeviceStream();
  auto* data = static_cast<int32_t*>(*DeviceAllocate(32 * 4));
  auto* in = static_cast<int32_t*>(*PinnedAllocate(4));
  auto* out = static_cast<int32_t*>(*PinnedAllocate(32 * 4));
  const auto expect_out = [&](int32_t first, int32_t last) {
    ASSERT_TRUE(SynchronizeStream(stream).ok());
    EXPECT_EQ(out[0], first);
    EXPECT_EQ(out[31], last);
  };
  ASSERT_TRUE(Launch<FillKernel>(stream, {.threads = 32}, FillParams{data, 100}).ok());  // not of the graph
  ASSERT_TRUE(BeginCapture(stream).ok());
  ASSERT_TRUE(Launch<FillKernel>(stream, {.threads = 32}, FillParams{data, 5}).ok());
  ASSERT_TRUE(EnqueueCopyFromHost(stream, data, in, 4).ok());
  ASSERT_TRUE(EnqueueCopyToHost(stream, out, data, 128).ok());
  const absl::StatusOr<GraphHandle> graph = EndCapture(stream);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::fill_n(out, 32, -1);
  expect_out(-1, -1);
  EXPECT_EQ(data[31], 131);
  const cuda_emulation::WorkCounts before = cuda_emulation::CountWork();
  for (const int32_t value : {7, 8}) {
    *in = value;
    ASSERT_TRUE(LaunchGraph(*graph, stream).ok());
    expect_out(value, 36);
    std::fill_n(out, 32, -1);
  }
  EXPECT_EQ(cuda_emulation::CountWork().graph_launches, before.graph_launches + 2);
  EXPECT_EQ(cuda_emulation::CountWork().enqueued, before.enqueued + 2);
  DestroyGraph(*graph);
  DestroyDeviceStream(stream);
  PinnedFree(in);
  PinnedFree(out);
  DeviceFree(data);
}

TEST(CudaEmulationRuntimeTest, CapturesRefuseWhatADeviceRefuses) {
  const StreamHandle stream = *CreateDeviceStream(), other = *CreateDeviceStream();
  const EventHandle event = *CreateDeviceEvent();
  void* data = *DeviceAllocate(128);
  std::vector<int32_t> host(32);
  const std::vector<std::pair<const char*, std::function<absl::Status()>>> calls = {
      {"SynchronizeStream", [&] { return SynchronizeStream(stream); }},
      {"DeviceAllocate", [&] { return DeviceAllocate(16).status(); }},
      {"PinnedAllocate", [&] { return PinnedAllocate(16).status(); }},
      {"RecordEvent", [&] { return RecordEvent(event, stream); }},
      {"WaitForEvent", [&] { return WaitForEvent(stream, event); }},
      {"BeginCapture", [&] { return BeginCapture(other); }},
      {"not pinned", [&] { return EnqueueCopyFromHost(stream, data, host.data(), 128); }},
      {"not pinned", [&] { return EnqueueCopyToHost(stream, host.data(), data, 128); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(BeginCapture(stream).ok());
    EXPECT_TRUE(absl::StrContains(call().message(), name));
    const absl::StatusOr<GraphHandle> graph = EndCapture(stream);  // fails, though nobody looked at the error
    EXPECT_TRUE(absl::StrContains(graph.status().message(), name)) << graph.status();
    EXPECT_TRUE(call().ok());  // outside of a capture
    if (name == std::string("BeginCapture")) DestroyGraph(*EndCapture(other));
  }
  EXPECT_FALSE(EndCapture(stream).ok());
  for (const StreamHandle each : {stream, other}) DestroyDeviceStream(each);
  DestroyDeviceEvent(event);
  DeviceFree(data);
}

TEST(CudaEmulationRuntimeTest, ACaptureHoldsItsOwnThreadOnly) {
  const StreamHandle stream = *CreateDeviceStream();
  ASSERT_TRUE(BeginCapture(stream).ok());
  std::thread([] {
    void* data = *DeviceAllocate(16);
    const StreamHandle other = *CreateDeviceStream();
    EXPECT_TRUE(EnqueueZero(other, data, 16).ok());
    EXPECT_TRUE(SynchronizeStream(other).ok());
    DestroyDeviceStream(other);
    DeviceFree(data);
  }).join();
  const absl::StatusOr<GraphHandle> graph = EndCapture(stream);
  ASSERT_TRUE(graph.ok()) << graph.status();
  DestroyGraph(*graph);
  DestroyDeviceStream(stream);
}

TEST(CudaEmulationRuntimeDeathTest, WhatHasNoStatusToReturnEndsTheProgram) {
  const StreamHandle stream = *CreateDeviceStream();
  const EventHandle event = *CreateDeviceEvent();
  void* data = *DeviceAllocate(128);
  void* pinned = *PinnedAllocate(16);
  ASSERT_TRUE(BeginCapture(stream).ok());
  EXPECT_DEATH(DeviceFree(data), "DeviceFree while the thread captures");
  EXPECT_DEATH(PinnedFree(pinned), "PinnedFree while the thread captures");
  EXPECT_DEATH((void)EventIsReached(event), "EventIsReached while the thread captures");
  EXPECT_DEATH(DestroyDeviceStream(stream), "DestroyDeviceStream while the thread captures");
  ASSERT_TRUE(EnqueueZero(stream, data, 128).ok());
  const GraphHandle graph = *EndCapture(stream);
  ASSERT_TRUE(LaunchGraph(graph, stream).ok());
  EXPECT_DEATH(DestroyGraph(graph), "launch was not waited for");
  ASSERT_TRUE(SynchronizeStream(stream).ok());
  DestroyGraph(graph);
  EXPECT_DEATH(LaunchGraph(graph, stream).IgnoreError(), "LaunchGraph of what is no graph");
  DestroyDeviceEvent(event);
  DestroyDeviceStream(stream);
  PinnedFree(pinned);
  DeviceFree(data);
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
