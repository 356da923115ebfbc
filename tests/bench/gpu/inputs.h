// Inputs that lie both in device memory and, for the reference backend, in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/gpu/bench.h"

namespace kvblend::gpu_bench {

/// The reference backend, and a stream of it.
struct Reference {
  static absl::StatusOr<Reference> Create();
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<kernels::Stream> stream;
};

/// A dense matrix of f32 or bf16, twice.
class Mirror {
 public:
  /// Uniform with variance 1; `seed` decides.
  static absl::StatusOr<Mirror> Random(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols,
                                       uint64_t seed);
  static absl::StatusOr<Mirror> Zeros(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols);

  int64_t rows() const { return rows_; }
  kernels::MatrixView device() { return View(device_->data()); }
  kernels::MatrixView host() { return View(host_.get()); }
  /// Rows of the host's, as floats, one after the other.
  std::vector<float> HostRows(const std::vector<int32_t>& rows) const;
  /// The same of the device's.
  absl::StatusOr<std::vector<float>> DeviceRows(Bench& bench, const std::vector<int32_t>& rows) const;
  /// Of all rows: see gpu_bench::RelativeError, the host's being what is expected.
  absl::StatusOr<double> RelativeError(Bench& bench) const;

 private:
  struct Free {
    void operator()(unsigned char* data) const;
  };
  static absl::StatusOr<Mirror> Allocate(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols);
  kernels::MatrixView View(void* data) const { return {data, dtype_, rows_, cols_, cols_}; }
  int64_t row_bytes() const { return cols_ * kernels::SizeOf(dtype_); }
  std::vector<float> ToFloats(const unsigned char* bytes, int64_t count) const;

  kernels::DataType dtype_ = kernels::DataType::kF32;
  int64_t rows_ = 0, cols_ = 0;
  std::unique_ptr<kernels::Buffer> device_;
  std::unique_ptr<unsigned char, Free> host_;
};

/// The bf16 KV of one layer of one sequence of `sizes().tokens` tokens, in pages in shuffled order.
class PagedKv {
 public:
  static absl::StatusOr<PagedKv> Random(Bench& bench, uint64_t seed);
  static absl::StatusOr<PagedKv> Zeros(Bench& bench);

  kernels::KvPagesView device() { return View(k_.device(), v_.device()); }
  kernels::KvPagesView host() { return View(k_.host(), v_.host()); }
  /// Rows at these positions of the sequence, over all its keys.
  absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> Plan(kernels::Backend& backend,
                                                           const std::vector<int32_t>& positions) const;
  absl::StatusOr<double> RelativeError(Bench& bench) const;

 private:
  static absl::StatusOr<PagedKv> Lay(const Sizes& sizes, Mirror k, Mirror v);
  kernels::KvPagesView View(kernels::MatrixView k, kernels::MatrixView v) const;

  Sizes sizes_;
  std::vector<int32_t> pages_;
  Mirror k_, v_;
};

/// For positions below sizes.tokens.
absl::StatusOr<std::unique_ptr<kernels::RopeTable>> MakeRope(kernels::Backend& backend, const Sizes& sizes);

std::vector<int32_t> Range(int32_t begin, int32_t end);
/// A few of 0 .. count-1 that a check looks at, ascending.
std::vector<int32_t> SampleRows(int64_t count);

}  // namespace kvblend::gpu_bench
