// What a device would not survive, or not define, stops the program with a message that says what and where.
#include "absl/base/config.h"
#include "tests/cuda_emulation/run_kernel.h"

namespace kvblend::kernels::cuda {
namespace {

struct FaultParams {
  int variant = 0;
  const uint16_t* in = nullptr;
};

template <auto Kernel>
void RunFault(int variant, int threads = 64, const uint16_t* in = nullptr) {
  RunKernel<Kernel>({.threads = threads, .shared_bytes = 1024}, FaultParams{variant, in});
}

KVBLEND_KERNEL(64, 1) RaceKernel(FaultParams p) {
  SharedArena arena;
  SharedArray<float> values = arena.Take<float>(128);
  const int thread = ThreadIndex();
  values[thread] = 0.0f;
  values[64 + thread] = 0.0f;
  SyncThreads();
  switch (p.variant) {
    case 0:  // two threads write one element
      values[thread / 2] = 1.0f;
      break;
    case 1:  // a barrier is missing between writing and reading
      values[thread] = 1.0f;
      values[64 + thread] = values[(thread + 1) % 64];
      break;
    case 2:  // and between reading and writing again
      values[thread] = 1.0f;
      SyncThreads();
      values[(thread + 1) % 64] = values[thread] + 1.0f;
      break;
    case 3:  // a warp's barrier is none between warps
      values[thread] = 1.0f;
      SyncWarp();
      values[64 + thread] = values[(thread + 32) % 64];
      break;
    case 4:  // a shuffle is no barrier
      values[thread] = 1.0f;
      Shuffle(thread, 0);
      values[64 + thread] = values[thread ^ 1];
      break;
    case 5:  // all read, one writes
      if (thread == 0) values[0] = 1.0f;
      SyncThreads();
      values[64 + thread] = values[0];
      if (thread == 0) values[0] = 2.0f;
      break;
    default:  // halves of a word are elements of their own: no race
      arena.Take<uint16_t>(64)[thread] = 1;
  }
}

TEST(CudaEmulationDeathTest, RacesAreFound) {
  EXPECT_DEATH(RunFault<RaceKernel>(0),
               "RaceKernel, block \\(0, 0, 0\\), thread .*race: writes what thread .* wrote with no barrier");
  for (int variant = 1; variant <= 5; ++variant) {
    SCOPED_TRACE(variant);
    EXPECT_DEATH(RunFault<RaceKernel>(variant),
                 "after .*failures_test.cc.*race: (reads|writes) what .* with no barrier between them");
  }
  RunFault<RaceKernel>(6);
}

KVBLEND_KERNEL(64, 1) SharedFaultKernel(FaultParams p) {
  SharedArena arena;
  SharedArray<uint16_t> values = arena.Take<uint16_t>(64);
  SharedArray<uint16_t> behind = arena.Take<uint16_t>(64);
  behind[ThreadIndex()] = 7;
  switch (p.variant) {
    case 0:
      values[ThreadIndex() + 1] = 1;
      break;
    case 1:
      values[ThreadIndex() - 1] = 1;
      break;
    case 2: {
      const uint16_t never_written = values[ThreadIndex()];
      behind[ThreadIndex()] = never_written;
      break;
    }
    case 3:
      arena.Take<float>(300)[0] = 1.0f;
      break;
    case 4:
      values.Slice(32, 33)[0] = 1;
      break;
    case 5: {
      uint32_t regs[4];
      LoadMatrix4(regs, behind, Lane() * 2 + 1);
      break;
    }
    case 6: {
      uint32_t regs[4];
      LoadMatrix4(regs, behind, Lane() * 8);
      break;
    }
    default:
      break;
  }
}

TEST(CudaEmulationDeathTest, SharedMemoryIsBounded) {
  EXPECT_DEATH(RunFault<SharedFaultKernel>(0),
               "thread 63: out of bounds: elements 64 .. 64 of a shared array of 64");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(1), "thread 0: out of bounds: elements -1 .. -1");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(2), "reads what no thread has written at byte 0");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(3), "takes 1456 bytes of shared memory, the launch gave 1024");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(4), "out of bounds: elements 32 .. 64");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(5), "no multiple of 16");
  EXPECT_DEATH(RunFault<SharedFaultKernel>(6), "out of bounds: elements 64 .. 71");
}

KVBLEND_KERNEL(64, 1) DivergenceKernel(FaultParams p) {
  const int thread = ThreadIndex();
  switch (p.variant) {
    case 0:  // some lanes do not shuffle
      if (Lane() < 16) Shuffle(thread, 0);
      break;
    case 1:  // lanes shuffle in different places
      if (Lane() < 16) {
        Shuffle(thread, 0);
      } else {
        Shuffle(thread, 1);
      }
      break;
    case 2:  // one warp leaves
      if (Warp() == 1) return;
      SyncThreads();
      break;
    case 3:  // half the block waits in one place, half in another
      if (Warp() == 0) {
        SyncThreads();
      } else {
        SyncThreads();
      }
      break;
    case 4:  // a lane waits for the block, the others for the warp
      if (thread == 5) {
        SyncThreads();
      } else {
        SyncWarp();
      }
      break;
    default:  // a warp may shuffle while another waits
      if (Warp() == 0) Shuffle(thread, 0);
      SyncThreads();
  }
}

TEST(CudaEmulationDeathTest, DivergenceIsFound) {
  EXPECT_DEATH(
      RunFault<DivergenceKernel>(0),
      "divergence: thread 0 waits for its warp at a shuffle .*failures_test.cc.*thread 16 has returned");
  EXPECT_DEATH(RunFault<DivergenceKernel>(1),
               "divergence: a shuffle at .* while other lanes of the warp wait at");
  EXPECT_DEATH(RunFault<DivergenceKernel>(2),
               "divergence: thread 0 waits for its block at SyncThreads .*, thread 32 has returned");
  EXPECT_DEATH(RunFault<DivergenceKernel>(3),
               "divergence: SyncThreads at .* while other threads of the block");
  EXPECT_DEATH(RunFault<DivergenceKernel>(4),
               "thread 0 waits for its warp at SyncWarp.*thread 5 waits for its block");
  RunFault<DivergenceKernel>(5);
}

KVBLEND_KERNEL(32, 1) CopyFaultKernel(FaultParams p) {
  SharedArena arena;
  SharedArray<uint16_t> values = arena.Take<uint16_t>(512);
  for (int i = Lane(); i < 512; i += 32) values[i] = 1;
  SyncThreads();
  if (p.variant == 0) {
    CopyAsync16(values, Lane() * 8, p.in + Lane() * 8 + 1, true);
  } else {
    CopyAsync16(values, Lane() * 8, p.in + Lane() * 8, true);
  }
  CopyAsyncCommit();
  if (p.variant == 1) return;
  if (p.variant == 2) values[Lane() * 8 + 256] = values[Lane() * 8];  // before it has arrived
  CopyAsyncWait<0>();
  if (p.variant == 3) values[Lane() * 8 + 256] = values[(Lane() + 1) % 32 * 8];  // the other has not waited
  if (p.variant == 4) CopyAsync16(values, 512, p.in, true);
}

TEST(CudaEmulationDeathTest, UnfinishedCopiesAreFound) {
  alignas(16) const uint16_t in[264] = {};
  EXPECT_DEATH(RunFault<CopyFaultKernel>(0, 32, in),
               "CopyAsync16 from of an address that is no multiple of 16");
  EXPECT_DEATH(RunFault<CopyFaultKernel>(1, 32, in), "returns with CopyAsync16s that it has not waited for");
  EXPECT_DEATH(RunFault<CopyFaultKernel>(2, 32, in), "reads the target of a CopyAsync16");
  EXPECT_DEATH(RunFault<CopyFaultKernel>(3, 32, in), "race: |reads the target of a CopyAsync16");
  EXPECT_DEATH(RunFault<CopyFaultKernel>(4, 32, in), "out of bounds: elements 512 .. 519");
  RunFault<CopyFaultKernel>(5, 32, in);
}

#if defined(ABSL_HAVE_ADDRESS_SANITIZER)
struct GlobalParams {
  float* out;
  int count;
};

KVBLEND_KERNEL(32, 1) GlobalFaultKernel(GlobalParams p) {
  if (Lane() < p.count) p.out[Lane()] = 1.0f;
}

TEST(CudaEmulationDeathTest, GlobalMemoryIsBounded) {
  void* data = *DeviceAllocate(20 * sizeof(float));
  RunKernel<GlobalFaultKernel>({.threads = 32}, GlobalParams{static_cast<float*>(data), 20});
  EXPECT_DEATH((RunKernel<GlobalFaultKernel>({.threads = 32}, GlobalParams{static_cast<float*>(data), 21})),
               "AddressSanitizer: heap-buffer-overflow");
  DeviceFree(data);
}
#endif

}  // namespace
}  // namespace kvblend::kernels::cuda
