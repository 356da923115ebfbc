// What the operations of one CpuBackend share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/machine/thread_pool.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/machine/weight_arena.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

struct CodeKernels;  // linear/code_products.h

/// What a CpuBackend multiplies; CpuContext has the same, and says what each of it is.
struct CpuArithmetic {
  DataType gemm_dtype = DataType::kF32, value_dtype = DataType::kF32;
  const CodeKernels *codes = nullptr, *pairs = nullptr, *few_pairs = nullptr, *tolerant = nullptr;
};

struct CpuContext {
  CpuContext(int num_threads, std::string weights_folder, const CpuArithmetic& arithmetic, const Tiles& f32,
             const Tiles& bf16, const Tiles* int16)
      : pool(num_threads, UseOneOpenMpThread),
        weights(std::move(weights_folder)),
        gemm_dtype(arithmetic.gemm_dtype),
        value_dtype(arithmetic.value_dtype),
        codes(arithmetic.codes),
        pairs(arithmetic.pairs),
        few_pairs(arithmetic.few_pairs),
        tolerant(arithmetic.tolerant),
        f32_tiles(f32),
        bf16_tiles(bf16),
        int16_tiles(int16) {}

  /// The tiles that multiply operands of `dtype`.
  const Tiles& TilesFor(DataType dtype) const { return dtype == DataType::kBF16 ? bf16_tiles : f32_tiles; }

  ThreadPool pool;
  ScratchPool scratch;
  WeightArena weights;
  GemmCache gemms;
  const DataType gemm_dtype;  // kF32 or kBF16
  // That weights which are no codes are kept and multiplied in, and bf16 pages by few rows; kF32 or kBF16.
  const DataType value_dtype;
  const CodeKernels* const codes;  // multiply activations in 8 bits; null: they are not rounded so
  const CodeKernels* const pairs;  // multiply them in 16 bits; null: they are not rounded so
  // The same, of as many rows as get the same bits as alone, where more are multiplied in gemm_dtype; null:
  // so are few.
  const CodeKernels* const few_pairs;
  // Multiply many rows of layers that tolerate it (WeightUsage) in asymmetric codes of 8 bits; null: as of
  // others.
  const CodeKernels* const tolerant;
  const Tiles& f32_tiles;
  const Tiles& bf16_tiles;
  const Tiles* const int16_tiles;  // of attention over pages that are not f32; null: none
};

/// Runs body(begin, end) over parts of 0 .. rows-1, in parallel when there is enough to do. A thread takes
/// about the same share of the rows in every loop, so that what it wrote is in its own caches: those of
/// another may be far away.
inline void ForRows(ThreadPool& pool, int64_t rows, int64_t bytes_per_row,
                    absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (rows <= 0) return;
  // 64 KiB take some microseconds, a few times what handing a part to another thread costs.
  constexpr int64_t kBytesPerPart = 64 << 10;
  const int64_t rows_per_part = std::max<int64_t>(1, kBytesPerPart / std::max<int64_t>(bytes_per_row, 1));
  const int64_t parts = (rows + rows_per_part - 1) / rows_per_part;
  pool.ForStreams(
      parts, [&](int64_t part) { body(part * rows_per_part, std::min(rows, (part + 1) * rows_per_part)); });
}

/// The first error of a parallel loop. Thread-safe.
class FirstError {
 public:
  /// False once there is an error: the loop may stop.
  bool ok() const { return !failed_.load(std::memory_order_relaxed); }
  void Update(absl::Status status) {
    if (status.ok()) return;
    absl::MutexLock lock(&mutex_);
    status_.Update(std::move(status));
    failed_.store(true, std::memory_order_relaxed);
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::kernels
