#include "tests/cuda_emulation/shared_memory.h"

#include <algorithm>
#include <string>

#include "tests/cuda_emulation/failure.h"

namespace kvblend::cuda_emulation {
namespace {

// 0xFFFF is NaN as bf16 and as f16, and so are four of these bytes as f32.
constexpr unsigned char kPoison = 0xFF;

std::string Where(uint32_t offset) { return " at byte " + std::to_string(offset) + " of shared memory"; }

}  // namespace

void SharedMemory::BeginBlock(int bytes) {
  ++interval_;
  first_interval_ = interval_;
  size_ = bytes;
  if (bytes_.size() < static_cast<size_t>(bytes)) {
    bytes_.resize(bytes);
    cells_.resize((bytes + 1) / 2);
  }
  std::fill_n(bytes_.begin(), bytes, kPoison);
}

void SharedMemory::CheckRead(int reader, int warp, uint32_t epoch, uint32_t offset, uint32_t bytes) {
  for (uint32_t i = offset / 2; i < (offset + bytes + 1) / 2; ++i) {
    Cell& cell = cells_[i];
    if (cell.pending != 0)
      Fail("reads the target of a CopyAsync16 that has not been waited for" + Where(2 * i));
    if (cell.write_interval < first_interval_) Fail("reads what no thread has written" + Where(2 * i));
    if (cell.write_interval == interval_ && cell.writer != reader &&
        (cell.writer / 32 != warp || cell.write_epoch == epoch)) {
      Fail("race: reads what thread " + std::to_string(cell.writer) + " wrote with no barrier between them" +
           Where(2 * i));
    }
    if (cell.read_interval != interval_) {
      cell.read_interval = interval_;
      cell.reader = static_cast<int16_t>(reader);
    } else if (cell.reader != reader && cell.reader != kManyReaders) {
      // Reads before the warp's last SyncWarp are ordered before all that this warp does now. Against other
      // warps, any thread of the warp stands for it.
      if (WarpOfReader(cell.reader) != warp) {
        cell.reader = kManyReaders;
      } else {
        cell.reader = static_cast<int16_t>(cell.read_epoch == epoch ? kWarpReaders - warp : reader);
      }
    }
    cell.read_epoch = epoch;
  }
}

void SharedMemory::CheckWrite(int thread, uint32_t epoch, uint32_t offset, uint32_t bytes) {
  const int warp = thread / 32;
  for (uint32_t i = offset / 2; i < (offset + bytes + 1) / 2; ++i) {
    Cell& cell = cells_[i];
    if (cell.pending != 0)
      Fail("writes the target of a CopyAsync16 that has not been waited for" + Where(2 * i));
    if (cell.write_interval == interval_ && cell.writer != thread &&
        (cell.writer / 32 != warp || cell.write_epoch == epoch)) {
      Fail("race: writes what thread " + std::to_string(cell.writer) + " wrote with no barrier between them" +
           Where(2 * i));
    }
    if (cell.read_interval == interval_ && cell.reader != thread &&
        (cell.reader == kManyReaders || WarpOfReader(cell.reader) != warp || cell.read_epoch == epoch)) {
      const std::string reader = cell.reader >= 0 ? "thread " + std::to_string(cell.reader) : "other threads";
      Fail("race: writes what " + reader + " read with no barrier between them" + Where(2 * i));
    }
    cell.write_interval = interval_;
    cell.write_epoch = epoch;
    cell.writer = static_cast<int16_t>(thread);
  }
}

void SharedMemory::StartCopy(int thread, uint32_t epoch, uint32_t offset, uint32_t bytes) {
  CheckWrite(thread, epoch, offset, bytes);
  for (uint32_t i = offset / 2; i < (offset + bytes) / 2; ++i) ++cells_[i].pending;
}

void SharedMemory::FinishCopy(int thread, uint32_t epoch, uint32_t offset, const void* in, uint32_t bytes) {
  for (uint32_t i = offset / 2; i < (offset + bytes) / 2; ++i) --cells_[i].pending;
  Write(thread, epoch, offset, in, bytes);
}

}  // namespace kvblend::cuda_emulation
