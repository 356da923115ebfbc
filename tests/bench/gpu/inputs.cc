#include "tests/bench/gpu/inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/host/float_convert.h"

namespace kvblend::gpu_bench {

using kernels::DataType;

absl::StatusOr<Reference> Reference::Create() {
  Reference reference;
  reference.backend = kernels::CreateReferenceBackend();
  KVBLEND_ASSIGN_OR_RETURN(reference.stream, reference.backend->CreateStream());
  return reference;
}

void Mirror::Free::operator()(unsigned char* data) const { std::free(data); }

absl::StatusOr<Mirror> Mirror::Allocate(Bench& bench, DataType dtype, int64_t rows, int64_t cols) {
  Mirror mirror;
  mirror.dtype_ = dtype;
  mirror.rows_ = rows;
  mirror.cols_ = cols;
  const int64_t bytes = rows * mirror.row_bytes();
  KVBLEND_ASSIGN_OR_RETURN(mirror.device_, bench.backend().Allocate(bytes));
  mirror.host_.reset(
      static_cast<unsigned char*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64))));
  if (mirror.host_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of an input"));
  }
  return mirror;
}

absl::StatusOr<Mirror> Mirror::Random(Bench& bench, DataType dtype, int64_t rows, int64_t cols,
                                      uint64_t seed) {
  KVBLEND_ASSIGN_OR_RETURN(Mirror mirror, Allocate(bench, dtype, rows, cols));
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;  // xorshift64*: millions of values in no time
  for (int64_t i = 0; i < rows * cols; ++i) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const auto bits = static_cast<int32_t>((state * 0x2545F4914F6CDD1Du) >> 32);
    const float value = static_cast<float>(bits) * (0x1p-31f * 1.7320508f);
    if (dtype == DataType::kF32) {
      reinterpret_cast<float*>(mirror.host_.get())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(mirror.host_.get())[i] = kernels::F32ToBf16(value);
    }
  }
  KVBLEND_RETURN_IF_ERROR(
      bench.Upload(mirror.device_->data(), mirror.host_.get(), rows * mirror.row_bytes()));
  return mirror;
}

absl::StatusOr<Mirror> Mirror::Zeros(Bench& bench, DataType dtype, int64_t rows, int64_t cols) {
  KVBLEND_ASSIGN_OR_RETURN(Mirror mirror, Allocate(bench, dtype, rows, cols));
  std::memset(mirror.host_.get(), 0, static_cast<size_t>(rows * mirror.row_bytes()));
  KVBLEND_RETURN_IF_ERROR(
      bench.Upload(mirror.device_->data(), mirror.host_.get(), rows * mirror.row_bytes()));
  return mirror;
}

std::vector<float> Mirror::ToFloats(const unsigned char* bytes, int64_t count) const {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = dtype_ == DataType::kF32 ? reinterpret_cast<const float*>(bytes)[i]
                                         : kernels::Bf16ToF32(reinterpret_cast<const uint16_t*>(bytes)[i]);
  }
  return values;
}

std::vector<float> Mirror::HostRows(const std::vector<int32_t>& rows) const {
  std::vector<float> values;
  for (const int32_t row : rows) {
    const std::vector<float> one = ToFloats(host_.get() + row * row_bytes(), cols_);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

absl::StatusOr<std::vector<float>> Mirror::DeviceRows(Bench& bench, const std::vector<int32_t>& rows) const {
  std::vector<float> values;
  const std::unique_ptr<unsigned char[]> bytes(new unsigned char[row_bytes()]);
  for (const int32_t row : rows) {
    const auto* from = static_cast<const unsigned char*>(device_->data()) + row * row_bytes();
    KVBLEND_RETURN_IF_ERROR(bench.Download(bytes.get(), from, row_bytes()));
    const std::vector<float> one = ToFloats(bytes.get(), cols_);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

absl::StatusOr<double> Mirror::RelativeError(Bench& bench) const {
  const int64_t bytes = rows_ * row_bytes();
  const std::unique_ptr<unsigned char[]> actual(new unsigned char[bytes]);
  KVBLEND_RETURN_IF_ERROR(bench.Download(actual.get(), device_->data(), bytes));
  return gpu_bench::RelativeError(ToFloats(actual.get(), rows_ * cols_),
                                  ToFloats(host_.get(), rows_ * cols_));
}

absl::StatusOr<PagedKv> PagedKv::Lay(const Sizes& sizes, Mirror k, Mirror v) {
  PagedKv kv;
  kv.sizes_ = sizes;
  kv.k_ = std::move(k);
  kv.v_ = std::move(v);
  kv.pages_ = Range(0, (sizes.tokens + sizes.page_size - 1) / sizes.page_size);
  // Neighbours in the sequence are none in memory, as after a while of serving.
  uint64_t state = 20261122;
  for (size_t i = kv.pages_.size() - 1; i > 0; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(kv.pages_[i], kv.pages_[(state >> 33) % (i + 1)]);
  }
  return kv;
}

namespace {

int64_t PagedRows(const Sizes& sizes) {
  return (int64_t{sizes.tokens} + sizes.page_size - 1) / sizes.page_size * sizes.page_size *
         sizes.num_kv_heads;
}

}  // namespace

absl::StatusOr<PagedKv> PagedKv::Random(Bench& bench, uint64_t seed) {
  const Sizes& sizes = bench.sizes();
  const int64_t rows = PagedRows(sizes);
  KVBLEND_ASSIGN_OR_RETURN(Mirror k, Mirror::Random(bench, DataType::kBF16, rows, sizes.head_dim, seed));
  KVBLEND_ASSIGN_OR_RETURN(Mirror v, Mirror::Random(bench, DataType::kBF16, rows, sizes.head_dim, seed + 1));
  return Lay(sizes, std::move(k), std::move(v));
}

absl::StatusOr<PagedKv> PagedKv::Zeros(Bench& bench) {
  const Sizes& sizes = bench.sizes();
  const int64_t rows = PagedRows(sizes);
  KVBLEND_ASSIGN_OR_RETURN(Mirror k, Mirror::Zeros(bench, DataType::kBF16, rows, sizes.head_dim));
  KVBLEND_ASSIGN_OR_RETURN(Mirror v, Mirror::Zeros(bench, DataType::kBF16, rows, sizes.head_dim));
  return Lay(sizes, std::move(k), std::move(v));
}

kernels::KvPagesView PagedKv::View(kernels::MatrixView k, kernels::MatrixView v) const {
  return {.k = k.data,
          .v = v.data,
          .dtype = DataType::kBF16,
          .num_pages = static_cast<int64_t>(pages_.size()),
          .num_kv_heads = sizes_.num_kv_heads,
          .page_size = sizes_.page_size,
          .head_dim = sizes_.head_dim};
}

absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PagedKv::Plan(
    kernels::Backend& backend, const std::vector<int32_t>& positions) const {
  const std::vector<int32_t> rows = {0, static_cast<int32_t>(positions.size())};
  const std::vector<int32_t> pages = {0, static_cast<int32_t>(pages_.size())};
  const std::vector<int32_t> kv_len = {sizes_.tokens};
  return backend.PlanBatch({.row_indptr = rows,
                            .positions = positions,
                            .kv_len = kv_len,
                            .page_indptr = pages,
                            .page_indices = pages_,
                            .page_size = sizes_.page_size,
                            .sliding_window = 0});
}

absl::StatusOr<double> PagedKv::RelativeError(Bench& bench) const {
  KVBLEND_ASSIGN_OR_RETURN(const double k, k_.RelativeError(bench));
  KVBLEND_ASSIGN_OR_RETURN(const double v, v_.RelativeError(bench));
  return std::max(k, v);
}

absl::StatusOr<std::unique_ptr<kernels::RopeTable>> MakeRope(kernels::Backend& backend, const Sizes& sizes) {
  std::vector<float> inv_freq(sizes.head_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / sizes.head_dim));
  }
  return backend.CreateRopeTable({.layout = kernels::RopeLayout::kInterleaved,
                                  .head_dim = sizes.head_dim,
                                  .max_position = sizes.tokens,
                                  .inv_freq = inv_freq});
}

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

std::vector<int32_t> SampleRows(int64_t count) {
  std::vector<int32_t> rows = {0, static_cast<int32_t>(count / 3), static_cast<int32_t>(count - 1)};
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace kvblend::gpu_bench
