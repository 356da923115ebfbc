// What this machine can do, measured in the process that measures the operations, on as many threads.
#pragma once

#include <cstdint>

namespace kvblend {

/// To be called before all else. `cpu_time`: seconds are the process's processor time; for one thread.
void ConfigurePeaks(int num_threads, bool cpu_time);

/// The time, on the clock that was configured.
double Seconds();

/// Operands of a product. Those of kInt8 are codes, u8 by s8, those of kInt16 pairs of codes, both with sums
/// in 32 bits.
enum class GemmOperands : uint8_t { kF32, kBF16, kInt8, kInt16 };

/// What one oneDNN matmul [rows, in] x [in, out] with packed weights takes, on oneDNN's own threads. Median;
/// measured once for each shape. REQUIRES: not kInt16, which oneDNN doesn't multiply.
double BareGemmSeconds(GemmOperands operands, int64_t rows, int64_t in, int64_t out);

/// GFLOP/s (of codes: 1e9 operations per second, two per product) of the best of several square products, or
/// of pair_products.h's loops: for kBF16 of tiles, where they are faster, and for kInt16, of which it is 0
/// where there is none.
double GemmPeakGflops(GemmOperands operands);

/// GB/s, bytes read and bytes written together, of memcpy between two arrays that take `footprint` bytes
/// together: a small one stays in the caches, as it does for an operation that touches as much.
double CopyGbps(int64_t footprint);

/// GB/s of reading 256 MiB.
double ReadGbps();

/// The footprint of what no cache holds.
inline constexpr int64_t kLargeFootprint = int64_t{512} << 20;

}  // namespace kvblend
