// Runs a kernel's blocks one after the other on the calling thread. Every thread of a block is a fiber with
// its own stack; fibers switch where threads wait for each other, at barriers and warp collectives, and
// nowhere else, so a run is deterministic.
//
// All 32 lanes of a warp must arrive at the same collective, and all threads of the block at the same
// SyncThreads (same kind, same place in the source). Everything else would hang or be undefined on a device
// and stops the program here. One executor per operating-system thread.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/device/launch.h"
#include "tests/cuda_emulation/failure.h"
#include "tests/cuda_emulation/shared_memory.h"

namespace kvblend::cuda_emulation {

inline constexpr int kWarpSize = kernels::cuda::kWarpSize;

/// executor.cc has their names, in this order.
enum class Collective : uint8_t { kSyncThreads, kSyncWarp, kShuffle, kVote, kLoadMatrix, kMma };

/// What a lane hands to a warp collective, and where it finds its result.
struct alignas(16) LaneSlot {
  unsigned char bytes[48];
};
/// Called by the last lane to arrive, on the slots of all 32.
using Combine = void (*)(LaneSlot* slots);

/// A CopyAsync16 under way.
struct PendingCopy {
  uint32_t offset;
  uint32_t valid_bytes;
  const void* source;
};

struct Thread {
  enum class State : uint8_t { kReady, kAtWarpCollective, kAtSyncThreads, kDone };

  int index = 0;  // in the block
  State state = State::kDone;
  Site site;             // of the collective it waits at, or the latest
  uint32_t parity = 0;   // of the warp's slots for the next collective
  int shared_taken = 0;  // bytes that SharedArena has handed out
  std::vector<PendingCopy> copies;
  std::vector<size_t> groups;  // sizes of the committed groups of `copies`, oldest first
  size_t uncommitted = 0;
  boost::context::fiber fiber;
  void* fake_stack = nullptr;  // AddressSanitizer's
  const void* stack_bottom = nullptr;
  size_t stack_size = 0;
};

struct Dim3 {
  int64_t x = 0, y = 0, z = 0;
};

class Executor {
 public:
  /// The calling thread's.
  static Executor& Current();
  /// The same from inside a kernel, where it is known to be there.
  static Executor& Running() { return *running_executor_; }
  ~Executor();

  /// Runs all blocks of a launch. `body` is the kernel with its parameters, for one thread.
  void Run(const std::string& kernel, const kernels::cuda::LaunchShape& shape,
           absl::FunctionRef<void()> body);

  // --- for the emulated device functions, inside a kernel ---
  Thread& thread() { return *current_; }
  int num_threads() const { return num_threads_; }
  const Dim3& block() const { return block_; }
  const kernels::cuda::LaunchShape& shape() const { return shape_; }
  SharedMemory& shared() { return shared_; }
  uint32_t warp_epoch() const { return warps_[current_->index / kWarpSize].epoch; }

  void SyncThreads(Site site);
  /// Hands in `bytes` of `data`, returns the slots of all lanes when all have arrived. The slots stay as they
  /// are until this lane arrives at the next collective but one.
  LaneSlot* WarpCollective(Collective kind, Site site, const void* data, size_t bytes,
                           Combine combine = nullptr);

  void StartCopy(uint32_t offset, const void* source, uint32_t valid_bytes);
  void CommitCopies();
  void WaitCopies(size_t groups_left);

  /// "kernel, block (x, y, z), thread t", or nothing outside a kernel.
  std::string Describe() const;

 private:
  struct Warp {
    int arrived = 0;
    Collective kind = Collective::kSyncWarp;
    Site site;
    uint32_t epoch = 0;  // completed SyncWarps
    LaneSlot slots[2][kWarpSize];
  };

  static inline constinit thread_local Executor* running_executor_ = nullptr;

  void RunBlock();
  void FiberMain();
  void CreateThread(int index);
  // Goes on with another thread that is ready, or with the scheduler when all are done.
  void SwitchToNext();
  void SwitchTo(Thread* next);
  void AfterSwitch();
  [[noreturn]] void FailStuck();

  std::string kernel_;
  kernels::cuda::LaunchShape shape_;
  absl::FunctionRef<void()>* body_ = nullptr;
  Dim3 block_;
  int num_threads_ = 0;
  int num_done_ = 0;
  int at_barrier_ = 0;
  Site barrier_site_;
  bool quit_ = false;
  SharedMemory shared_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread scheduler_;  // stands for the code that called Run
  Thread* current_ = nullptr;
  Thread* previous_ = nullptr;  // who switched to current_
};

}  // namespace kvblend::cuda_emulation
