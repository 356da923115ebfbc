// What this machine can do, measured in the process that measures the operations, on as many threads.
#pragma once

#include <cstdint>

namespace kvblend {

/// To be called before all else. `cpu_time`: seconds are the process's processor time; for one thread.
void ConfigurePeaks(int num_threads, bool cpu_time);

/// Of the clock that was configured.
double Seconds();

/// Of one oneDNN matmul [rows, in] x [in, out] -> f32 with packed weights, on oneDNN's own threads. Median;
/// measured once for each shape.
double BareGemmSeconds(bool bf16, int64_t rows, int64_t in, int64_t out);

/// GFLOP/s of the best of several square products.
double GemmPeakGflops(bool bf16);

/// GB/s, bytes read and bytes written together, of memcpy between two arrays that take `footprint` bytes
/// together: a small one stays in the caches, as it does for an operation that touches as much.
double CopyGbps(int64_t footprint);

/// GB/s of reading 256 MiB.
double ReadGbps();

/// The footprint of what no cache holds.
inline constexpr int64_t kLargeFootprint = int64_t{512} << 20;

}  // namespace kvblend
