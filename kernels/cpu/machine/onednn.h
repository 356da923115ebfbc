// oneDNN as this backend uses it: matrix products of bounded shapes, each run by one thread on its own slice.
//
// oneDNN is built with OpenMP; a thread that calls it must have asked for a single OpenMP thread, or
// libgomp would start (and spin) threads of its own beside the pool's. Workers do so when they start, callers
// through OneDnnThreadScope.
#pragma once

#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Makes oneDNN run in the calling thread alone, from now on.
void UseOneOpenMpThread();

/// UseOneOpenMpThread for a scope of a thread that belongs to somebody else.
class OneDnnThreadScope {
 public:
  OneDnnThreadScope();
  ~OneDnnThreadScope();
  OneDnnThreadScope(const OneDnnThreadScope&) = delete;
  OneDnnThreadScope& operator=(const OneDnnThreadScope&) = delete;

 private:
  const int previous_;
};

const dnnl::engine& OneDnnEngine();

/// Held while primitives are created. oneDNN's own cache of primitives is thread-safe, but synchronises in
/// ways that ThreadSanitizer cannot see in an uninstrumented library; creation is rare enough to be serial.
absl::Mutex& OneDnnCreationMutex();

/// Whether there are bf16 products at all (AVX-512).
bool OneDnnSupportsBF16();
/// Whether the processor has instructions for them, and may use them.
bool OneDnnHasBF16Instructions();
/// Whether the processor has AMX, and may use it.
bool OneDnnHasAmx();
/// Whether nothing multiplies faster than bf16 products do, but for codes of 8 bits: with AMX, and with
/// AVX512-BF16 but on Intel's processors, where a vdpbf16ps takes as long as four vpdpwssd of 16-bit codes.
/// REQUIRES: ApplyInstructionSetLimit was called.
bool OneDnnHasFastBF16();
/// "2.6.3, avx512_core_bf16"
std::string OneDnnDescription();

/// All matrices are dense: for any other row stride oneDNN 2.6 has only slow code.
struct GemmSpec {
  DataType dtype = DataType::kF32;  // of A and B: kF32 or kBF16; C is f32
  bool accumulate = false;
  int64_t m = 0, n = 0, k = 0;

  friend bool operator==(const GemmSpec&, const GemmSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const GemmSpec& s) {
    return H::combine(std::move(h), s.dtype, s.accumulate, s.m, s.n, s.k);
  }
};

/// C = A B or C += A B for one shape. Immutable, so any number of threads may run it.
class Gemm {
 public:
  static absl::StatusOr<std::shared_ptr<const Gemm>> Create(const GemmSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(OneDnnCreationMutex());

  /// b: as PackedGemmDesc
  absl::Status Run(const void* a, const dnnl::memory& b, void* c) const;

 private:
  struct Handles;

  Gemm();
  Handles& ThreadHandles() const;
  absl::Status Execute(const Handles& handles, const dnnl::memory& b) const;

  const uint64_t id_;  // unlike an address, never used twice
  dnnl::matmul primitive_;
  dnnl::memory::desc a_, c_, scratchpad_;
};

/// Packed weights lie in blocks of kPackedBlock = 64 outputs, each k-major: f32 [n / 64][k / 16][16][64],
/// bf16 [n / 64][k / 32][16][64][2], padded with zeros. Tiles and simd::PackedMatVec read them everywhere,
/// oneDNN is fast with them from AVX-512 on.
bool OneDnnReadsBlocks();
/// k rounded up as blocks pad it.
int64_t PackedColumns(DataType dtype, int64_t k);
dnnl::memory::desc PackedGemmDesc(DataType dtype, int64_t k, int64_t n);

/// Products already prepared (preparing one generates machine code: up to a millisecond). Thread-safe.
class GemmCache {
 public:
  absl::StatusOr<std::shared_ptr<const Gemm>> Get(const GemmSpec& spec)
      ABSL_LOCKS_EXCLUDED(OneDnnCreationMutex(), mutex_);

 private:
  // Callers round the shapes they ask for to few; a model needs some hundreds.
  static constexpr size_t kMaxEntries = 2048;

  absl::Mutex mutex_;  // taken after OneDnnCreationMutex
  absl::flat_hash_map<GemmSpec, std::shared_ptr<const Gemm>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::kernels
