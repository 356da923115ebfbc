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

class CudaEmulationRuntimeTest : public testing::Test {
 protected:
  ~CudaEmulationRuntimeTest() override {
    for (const EventHandle event : {event_, other_event_}) DestroyDeviceEvent(event);
    for (const StreamHandle stream : {stream_, other_}) DestroyDeviceStream(stream);
    PinnedFree(pinned_);
    DeviceFree(data_);
  }

  /// The numbers from `value` on, into data_.
  absl::Status EnqueueFill(int32_t value) {
    return StatusOf(Launch<FillKernel>(stream_, {.threads = 32}, FillParams{data_, value}), "FillKernel");
  }

  const StreamHandle stream_ = *CreateDeviceStream(), other_ = *CreateDeviceStream();
  const EventHandle event_ = *CreateDeviceEvent(), other_event_ = *CreateDeviceEvent();
  int32_t* const data_ = static_cast<int32_t*>(*DeviceAllocate(128));
  int32_t* const pinned_ = static_cast<int32_t*>(*PinnedAllocate(256));
};
using CudaEmulationRuntimeDeathTest = CudaEmulationRuntimeTest;

TEST_F(CudaEmulationRuntimeTest, WorkRunsInOrderWhenItIsWaitedFor) {
  const StreamHandle stream = *CreateDeviceStream();
  std::vector<int32_t> source(32, 5), target(32, -1);
  ASSERT_TRUE(EnqueueCopyFromHost(stream_, data_, source.data(), 128).ok());
  source.assign(32, 6);  // has been read
  ASSERT_TRUE(EnqueueCopyToHost(stream_, target.data(), data_, 128).ok());
  ASSERT_TRUE(EnqueueFill(100).ok());
  EXPECT_EQ(target[0], -1);
  ASSERT_TRUE(SynchronizeStream(stream_).ok());
  EXPECT_EQ(target, std::vector<int32_t>(32, 5));
  EXPECT_EQ(data_[31], 131);
  ASSERT_TRUE(EnqueueZero(stream, data_, 128).ok());
  DestroyDeviceStream(stream);  // waits
  EXPECT_EQ(data_[31], 0);
}

TEST_F(CudaEmulationRuntimeTest, FreeingWaitsForAllStreams) {
  void* const unused = *DeviceAllocate(128);
  ASSERT_TRUE(EnqueueFill(1).ok());
  DeviceFree(unused);
  EXPECT_EQ(data_[31], 32);
}

TEST_F(CudaEmulationRuntimeTest, FullMemoryIsResourceExhausted) {
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

TEST_F(CudaEmulationRuntimeTest, RefusesShapesThatADeviceRefuses) {
  for (const LaunchShape& shape :
       {LaunchShape{.blocks_x = 0}, LaunchShape{.blocks_x = int64_t{1} << 31}, LaunchShape{.blocks_y = 65536},
        LaunchShape{.blocks_z = 65536}, LaunchShape{.threads = 33}, LaunchShape{.threads = 1056},
        LaunchShape{.threads = 0}, LaunchShape{.shared_bytes = kMaxSharedBytes + 1}}) {
    const LaunchError error = Launch<FillKernel>(stream_, shape, FillParams{});
    EXPECT_FALSE(error.ok());
    EXPECT_EQ(StatusOf(error, "FillKernel").code(), absl::StatusCode::kInternal);
  }
}

TEST_F(CudaEmulationRuntimeTest, HostThreadsRunKernelsAtOnce) {
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

TEST_F(CudaEmulationRuntimeTest, PinnedMemoryIsReadWhenItsTurnComes) {
  *pinned_ = 1;
  ASSERT_TRUE(EnqueueCopyFromHost(stream_, data_, pinned_, 4).ok());
  *pinned_ = 2;
  ASSERT_TRUE(SynchronizeStream(stream_).ok());
  EXPECT_EQ(*data_, 2);
}

TEST_F(CudaEmulationRuntimeTest, StreamsWaitForEventsOfOthersAsTheyWereRecorded) {
  std::vector<int32_t> seen(32, -1), early(32, -1);
  EXPECT_TRUE(EventIsReached(other_event_));  // never recorded
  ASSERT_TRUE(EnqueueZero(stream_, data_, 128).ok());
  ASSERT_TRUE(RecordEvent(event_, stream_).ok());
  EXPECT_FALSE(EventIsReached(event_));
  ASSERT_TRUE(WaitForEvent(other_, other_event_).ok());
  ASSERT_TRUE(WaitForEvent(other_, event_).ok());
  ASSERT_TRUE(EnqueueCopyToHost(other_, early.data(), data_, 128).ok());
  ASSERT_TRUE(EnqueueFill(7).ok());
  ASSERT_TRUE(RecordEvent(event_, stream_).ok());
  // `other` waits for the first recording only, `seen` for the second.
  ASSERT_TRUE(SynchronizeStream(other_).ok());
  EXPECT_EQ(early, std::vector<int32_t>(32, 0));
  EXPECT_FALSE(EventIsReached(event_));
  ASSERT_TRUE(WaitForEvent(other_, event_).ok());
  ASSERT_TRUE(EnqueueCopyToHost(other_, seen.data(), data_, 128).ok());
  ASSERT_TRUE(SynchronizeStream(other_).ok());
  EXPECT_EQ(seen[31], 38);
  EXPECT_TRUE(EventIsReached(event_));
}

TEST_F(CudaEmulationRuntimeTest, ThreadsMayRunStreamsThatWaitForEachOther) {
  const EventHandle ping = event_, pong = other_event_;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(RecordEvent(ping, stream_).ok());
    ASSERT_TRUE(WaitForEvent(other_, ping).ok());
    ASSERT_TRUE(RecordEvent(pong, other_).ok());
    ASSERT_TRUE(WaitForEvent(stream_, pong).ok());
  }
  std::thread thread([&] { EXPECT_TRUE(SynchronizeStream(stream_).ok()); });
  EXPECT_TRUE(SynchronizeStream(other_).ok());
  thread.join();
  EXPECT_TRUE(EventIsReached(ping) && EventIsReached(pong));
}

TEST_F(CudaEmulationRuntimeTest, GraphsRunWithTheBytesThatAreThereThen) {
  int32_t *const in = pinned_, *const out = pinned_ + 32;
  const auto expect_out = [&](int32_t first, int32_t last) {
    ASSERT_TRUE(SynchronizeStream(stream_).ok());
    EXPECT_EQ(out[0], first);
    EXPECT_EQ(out[31], last);
  };
  ASSERT_TRUE(EnqueueFill(100).ok());  // not of the graph
  ASSERT_TRUE(BeginCapture(stream_).ok());
  ASSERT_TRUE(EnqueueFill(5).ok());
  ASSERT_TRUE(EnqueueCopyFromHost(stream_, data_, in, 4).ok());
  ASSERT_TRUE(EnqueueCopyToHost(stream_, out, data_, 128).ok());
  const absl::StatusOr<GraphHandle> graph = EndCapture(stream_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::fill_n(out, 32, -1);
  expect_out(-1, -1);
  EXPECT_EQ(data_[31], 131);
  const cuda_emulation::WorkCounts before = cuda_emulation::CountWork();
  for (const int32_t value : {7, 8}) {
    *in = value;
    ASSERT_TRUE(LaunchGraph(*graph, stream_).ok());
    expect_out(value, 36);
    std::fill_n(out, 32, -1);
  }
  EXPECT_EQ(cuda_emulation::CountWork().graph_launches, before.graph_launches + 2);
  EXPECT_EQ(cuda_emulation::CountWork().enqueued, before.enqueued + 2);
  DestroyGraph(*graph);
}

TEST_F(CudaEmulationRuntimeTest, CapturesRefuseWhatADeviceRefuses) {
  std::vector<int32_t> host(32);
  const std::vector<std::pair<const char*, std::function<absl::Status()>>> calls = {
      {"SynchronizeStream", [&] { return SynchronizeStream(stream_); }},
      {"DeviceAllocate", [&] { return DeviceAllocate(16).status(); }},
      {"PinnedAllocate", [&] { return PinnedAllocate(16).status(); }},
      {"RecordEvent", [&] { return RecordEvent(event_, stream_); }},
      {"WaitForEvent", [&] { return WaitForEvent(stream_, event_); }},
      {"BeginCapture", [&] { return BeginCapture(other_); }},
      {"not pinned", [&] { return EnqueueCopyFromHost(stream_, data_, host.data(), 128); }},
      {"not pinned", [&] { return EnqueueCopyToHost(stream_, host.data(), data_, 128); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(BeginCapture(stream_).ok());
    EXPECT_TRUE(absl::StrContains(call().message(), name));
    const absl::StatusOr<GraphHandle> graph =
        EndCapture(stream_);  // fails, though nobody looked at the error
    EXPECT_TRUE(absl::StrContains(graph.status().message(), name)) << graph.status();
    EXPECT_TRUE(call().ok());  // outside of a capture
    if (name == std::string("BeginCapture")) DestroyGraph(*EndCapture(other_));
  }
  EXPECT_FALSE(EndCapture(stream_).ok());
  EXPECT_TRUE(SynchronizeStream(stream_).ok());  // while `host` is there
}

TEST_F(CudaEmulationRuntimeTest, ACaptureHoldsItsOwnThreadOnly) {
  ASSERT_TRUE(BeginCapture(stream_).ok());
  std::thread([this] {
    void* const allocated = *DeviceAllocate(16);
    EXPECT_TRUE(EnqueueZero(other_, allocated, 16).ok());
    EXPECT_TRUE(SynchronizeStream(other_).ok());
    DeviceFree(allocated);
  }).join();
  const absl::StatusOr<GraphHandle> graph = EndCapture(stream_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  DestroyGraph(*graph);
}

TEST_F(CudaEmulationRuntimeDeathTest, WhatHasNoStatusToReturnEndsTheProgram) {
  ASSERT_TRUE(BeginCapture(stream_).ok());
  EXPECT_DEATH(DeviceFree(data_), "DeviceFree while the thread captures");
  EXPECT_DEATH(PinnedFree(pinned_), "PinnedFree while the thread captures");
  EXPECT_DEATH((void)EventIsReached(event_), "EventIsReached while the thread captures");
  EXPECT_DEATH(DestroyDeviceStream(stream_), "DestroyDeviceStream while the thread captures");
  ASSERT_TRUE(EnqueueZero(stream_, data_, 128).ok());
  const GraphHandle graph = *EndCapture(stream_);
  ASSERT_TRUE(LaunchGraph(graph, stream_).ok());
  EXPECT_DEATH(DestroyGraph(graph), "launch was not waited for");
  ASSERT_TRUE(SynchronizeStream(stream_).ok());
  DestroyGraph(graph);
  EXPECT_DEATH(LaunchGraph(graph, stream_).IgnoreError(), "LaunchGraph of what is no graph");
}

KVBLEND_KERNEL(32, 1) NeverRunKernel(FillParams p) { p.out[0] = 1; }

TEST_F(CudaEmulationRuntimeTest, ListsKernelsThatHaveNotRun) {
  if (stream_ == nullptr) (void)Launch<NeverRunKernel>(stream_, {}, FillParams{});
  int32_t out[32];
  RunKernel<FillKernel>({.threads = 32}, FillParams{out, 0});
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  EXPECT_TRUE(contains(cuda_emulation::AllKernels(), "FillKernel"));
  EXPECT_TRUE(contains(cuda_emulation::AllKernels(), "NeverRunKernel"));
  EXPECT_FALSE(contains(cuda_emulation::KernelsNotExecuted(), "FillKernel"));
  EXPECT_TRUE(contains(cuda_emulation::KernelsNotExecuted(), "NeverRunKernel"));
}

}  // namespace
}  // namespace kvblend::kernels::cuda
