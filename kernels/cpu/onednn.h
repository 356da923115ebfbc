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
#include "kernels/cpu/tiles.h"
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

/// bf16 products exist at all (AVX-512), and are faster than f32 (AVX512-BF16 or AMX).
bool OneDnnSupportsBF16();
bool OneDnnHasFastBF16();
/// Products of 8-bit integers that neither saturate on the way nor take longer than others (AVX512-VNNI).
bool OneDnnHasFastInt8();
/// "2.6.3, avx512_core_bf16"
std::string OneDnnDescription();

/// Types of a product's matrices.
enum class GemmTypes : uint8_t {
  kF32,   // A, B and C
  kBF16,  // A and B; C is f32
  kInt8,  // A is u8, B is s8, C is s32
};
constexpr GemmTypes GemmTypesOf(DataType dtype) {
  return dtype == DataType::kBF16 ? GemmTypes::kBF16 : GemmTypes::kF32;
}

/// All matrices are dense: for any other row stride oneDNN 2.6 has only slow code.
struct GemmSpec {
  GemmTypes types = GemmTypes::kF32;
  bool accumulate = false;  // not with kInt8
  int64_t m = 0, n = 0, k = 0;

  friend bool operator==(const GemmSpec&, const GemmSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const GemmSpec& s) {
    return H::combine(std::move(h), s.types, s.accumulate, s.m, s.n, s.k);
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
/// bf16 [n / 64][k / 32][16][64][2], s8 [n / 64][k / 64][16][64][4], padded with zeros. Tiles and
/// simd::PackedMatVec read those of floats everywhere, oneDNN is fast with all from AVX-512 on.
bool OneDnnReadsBlocks();
/// Of an element of B.
constexpr int64_t PackedElementBytes(GemmTypes types) {
  return types == GemmTypes::kF32 ? 4 : types == GemmTypes::kBF16 ? 2 : 1;
}
/// k rounded up as blocks pad it.
int64_t PackedColumns(GemmTypes types, int64_t k);
inline int64_t PackedColumns(DataType dtype, int64_t k) { return PackedColumns(GemmTypesOf(dtype), k); }
dnnl::memory::desc PackedGemmDesc(GemmTypes types, int64_t k, int64_t n);

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
