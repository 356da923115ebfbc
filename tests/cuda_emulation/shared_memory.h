// A block's shared memory: bytes, and for every two of them who touched them last, so that races, reads of
// what nobody wrote and reads of copies that have not arrived are found whatever order the threads ran in.
//
// Two accesses by different threads, one of them a write, race when no barrier lies between them: no
// SyncThreads, and, within a warp, no SyncWarp. Shuffles and votes order nothing, as on the hardware.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace kvblend::cuda_emulation {

class SharedMemory {
 public:
  /// Forgets what the previous block did. Its bytes are poisoned, so that they are no block's lucky zeros.
  void BeginBlock(int bytes);
  /// A SyncThreads has completed.
  void NextInterval() { ++interval_; }
  int size() const { return size_; }

  /// `epoch`: how many SyncWarps the thread's warp has completed.
  void Read(int thread, uint32_t epoch, uint32_t offset, void* out, uint32_t bytes) {
    CheckRead(thread, thread / 32, epoch, offset, bytes);
    std::memcpy(out, bytes_.data() + offset, bytes);
  }
  /// A read by all threads of a warp at once, whichever of them gets the bytes.
  void ReadByWarp(int warp, uint32_t epoch, uint32_t offset, void* out, uint32_t bytes) {
    CheckRead(kWarpReaders - warp, warp, epoch, offset, bytes);
    std::memcpy(out, bytes_.data() + offset, bytes);
  }
  void Write(int thread, uint32_t epoch, uint32_t offset, const void* in, uint32_t bytes) {
    CheckWrite(thread, epoch, offset, bytes);
    std::memcpy(bytes_.data() + offset, in, bytes);
  }
  /// A copy that may arrive any time from now on; until FinishCopy nobody may touch its target.
  void StartCopy(int thread, uint32_t epoch, uint32_t offset, uint32_t bytes);
  void FinishCopy(int thread, uint32_t epoch, uint32_t offset, const void* in, uint32_t bytes);

 private:
  // One per two bytes, the smallest element of a SharedArray.
  struct Cell {
    uint32_t write_interval = 0, write_epoch = 0;
    uint32_t read_interval = 0, read_epoch = 0;
    int16_t writer = 0;
    int16_t reader = 0;    // a thread; kWarpReaders - w: several of warp w; kManyReaders: of several warps
    uint16_t pending = 0;  // copies under way
  };
  static constexpr int16_t kWarpReaders = -1;
  static constexpr int16_t kManyReaders = -100;

  static int WarpOfReader(int reader) { return reader >= 0 ? reader / 32 : kWarpReaders - reader; }
  // `reader` as in Cell.
  void CheckRead(int reader, int warp, uint32_t epoch, uint32_t offset, uint32_t bytes);
  void CheckWrite(int thread, uint32_t epoch, uint32_t offset, uint32_t bytes);

  std::vector<unsigned char> bytes_;
  std::vector<Cell> cells_;
  int size_ = 0;
  uint32_t interval_ = 0;
  uint32_t first_interval_ = 0;  // of this block
};

}  // namespace kvblend::cuda_emulation
