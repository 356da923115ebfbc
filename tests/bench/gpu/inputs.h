// Inputs that lie both in device memory and, for the reference backend, in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/gpu/bench.h"

namespace kvblend::gpu_bench {

/// What each of the backends has made of the same.
template <typename T>
struct Both {
  std::unique_ptr<T> device, host;
  T& On(const Side& side) const { return side.is_reference ? *host : *device; }
};
/// `make`: from a backend to a StatusOr<std::unique_ptr<T>>.
template <typename T, typename Make>
absl::StatusOr<Both<T>> MakeBoth(Bench& bench, const Make& make) {
  Both<T> both;
  KVBLEND_ASSIGN_OR_RETURN(both.device, make(bench.backend()));
  KVBLEND_ASSIGN_OR_RETURN(both.host, make(bench.reference().backend));
  return both;
}

/// A dense matrix of f32 or bf16, twice.
class Mirror {
 public:
  /// Uniform with variance 1; `seed` decides.
  static absl::StatusOr<Mirror> Random(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols,
                                       uint64_t seed);
  /// `host_dtype`: the reference's, where it is another.
  static absl::StatusOr<Mirror> Zeros(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols,
                                      std::optional<kernels::DataType> host_dtype = {});

  int64_t rows() const { return rows_; }
  kernels::MatrixView device() { return {device_->data(), dtype_, rows_, cols_, cols_}; }
  kernels::MatrixView On(const Side& side) {
    return side.is_reference ? kernels::MatrixView{host_.get(), host_dtype_, rows_, cols_, cols_} : device();
  }
  /// Rows of the host's, as floats, one after the other.
  std::vector<float> HostRows(const std::vector<int32_t>& rows) const;
  /// The same of the device's.
  absl::StatusOr<std::vector<float>> DeviceRows(Bench& bench, const std::vector<int32_t>& rows) const;
  /// The error over all rows: see gpu_bench::RelativeError, the host's being what is expected.
  absl::StatusOr<double> RelativeError(Bench& bench) const;

 private:
  struct Free {
    void operator()(unsigned char* data) const;
  };
  static absl::StatusOr<Mirror> Allocate(Bench& bench, kernels::DataType dtype, int64_t rows, int64_t cols,
                                         kernels::DataType host_dtype);
  absl::Status UploadAll(Bench& bench) {
    return bench.Upload(device_->data(), host_.get(), device_->size_bytes());
  }
  int64_t row_bytes() const { return cols_ * kernels::SizeOf(dtype_); }

  kernels::DataType dtype_ = kernels::DataType::kF32, host_dtype_ = kernels::DataType::kF32;
  int64_t rows_ = 0, cols_ = 0;
  std::unique_ptr<kernels::Buffer> device_;
  std::unique_ptr<unsigned char, Free> host_;
};

/// The bf16 KV of one layer of one sequence of `sizes().tokens` tokens, in pages in shuffled order.
class PagedKv {
 public:
  /// Random, or without a `seed` zeros.
  static absl::StatusOr<PagedKv> Create(Bench& bench, std::optional<uint64_t> seed = {});

  kernels::KvPagesView On(const Side& side) { return View(k_.On(side), v_.On(side)); }
  /// Rows at these positions of the sequence, over all its keys.
  absl::StatusOr<Both<kernels::BatchPlan>> Plan(Bench& bench, const std::vector<int32_t>& positions) const;
  absl::StatusOr<double> RelativeError(Bench& bench) const;

 private:
  kernels::KvPagesView View(kernels::MatrixView k, kernels::MatrixView v) const;

  Sizes sizes_;
  std::vector<int32_t> pages_;
  Mirror k_, v_;
};

/// For positions below sizes().tokens.
absl::StatusOr<Both<kernels::RopeTable>> MakeRope(Bench& bench);

std::vector<int32_t> Range(int32_t begin, int32_t end);
/// A few of 0 .. count-1 that a check looks at, ascending.
std::vector<int32_t> SampleRows(int64_t count);

}  // namespace kvblend::gpu_bench
