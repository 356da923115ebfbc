#include "tests/bench/gpu/inputs.h"

#include <algorithm>
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

void Mirror::Free::operator()(unsigned char* data) const { std::free(data); }

absl::StatusOr<Mirror> Mirror::Allocate(Bench& bench, DataType dtype, int64_t rows, int64_t cols,
                                        DataType host_dtype) {
  Mirror mirror;
  mirror.dtype_ = dtype;
  mirror.host_dtype_ = host_dtype;
  mirror.rows_ = rows;
  mirror.cols_ = cols;
  KVBLEND_ASSIGN_OR_RETURN(mirror.device_, bench.backend().Allocate(rows * mirror.row_bytes()));
  const int64_t bytes = rows * cols * kernels::SizeOf(host_dtype);
  mirror.host_.reset(
      static_cast<unsigned char*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64))));
  if (mirror.host_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes of an input"));
  }
  return mirror;
}

absl::StatusOr<Mirror> Mirror::Random(Bench& bench, DataType dtype, int64_t rows, int64_t cols,
                                      uint64_t seed) {
  KVBLEND_ASSIGN_OR_RETURN(Mirror mirror, Allocate(bench, dtype, rows, cols, dtype));
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;  // xorshift64*: millions of values in no time
  for (int64_t i = 0; i < rows * cols; ++i) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const auto bits = static_cast<int32_t>((state * 0x2545F4914F6CDD1Du) >> 32);
    kernels::StoreElement(mirror.host_.get(), dtype, i, static_cast<float>(bits) * (0x1p-31f * 1.7320508f));
  }
  KVBLEND_RETURN_IF_ERROR(mirror.UploadAll(bench));
  return mirror;
}

absl::StatusOr<Mirror> Mirror::Zeros(Bench& bench, DataType dtype, int64_t rows, int64_t cols,
                                     std::optional<DataType> host_dtype) {
  KVBLEND_ASSIGN_OR_RETURN(Mirror mirror, Allocate(bench, dtype, rows, cols, host_dtype.value_or(dtype)));
  std::memset(mirror.host_.get(), 0, static_cast<size_t>(rows * cols * kernels::SizeOf(mirror.host_dtype_)));
  KVBLEND_RETURN_IF_ERROR(mirror.UploadAll(bench));
  return mirror;
}

std::vector<float> Mirror::HostRows(const std::vector<int32_t>& rows) const {
  std::vector<float> values;
  for (const int32_t row : rows) {
    for (int64_t c = 0; c < cols_; ++c)
      values.push_back(kernels::LoadElement(host_.get(), host_dtype_, row * cols_ + c));
  }
  return values;
}

absl::StatusOr<std::vector<float>> Mirror::DeviceRows(Bench& bench, const std::vector<int32_t>& rows) const {
  std::vector<float> values;
  const std::unique_ptr<unsigned char[]> bytes(new unsigned char[row_bytes()]);
  for (const int32_t row : rows) {
    const auto* from = static_cast<const unsigned char*>(device_->data()) + row * row_bytes();
    KVBLEND_RETURN_IF_ERROR(bench.Download(bytes.get(), from, row_bytes()));
    for (int64_t c = 0; c < cols_; ++c) values.push_back(kernels::LoadElement(bytes.get(), dtype_, c));
  }
  return values;
}

absl::StatusOr<double> Mirror::RelativeError(Bench& bench) const {
  const std::unique_ptr<unsigned char[]> bytes(new unsigned char[rows_ * row_bytes()]);
  KVBLEND_RETURN_IF_ERROR(bench.Download(bytes.get(), device_->data(), rows_ * row_bytes()));
  std::vector<float> actual(rows_ * cols_), expected(rows_ * cols_);
  for (int64_t i = 0; i < rows_ * cols_; ++i) {
    actual[i] = kernels::LoadElement(bytes.get(), dtype_, i);
    expected[i] = kernels::LoadElement(host_.get(), host_dtype_, i);
  }
  return gpu_bench::RelativeError(actual, expected);
}

absl::StatusOr<PagedKv> PagedKv::Create(Bench& bench, std::optional<uint64_t> seed) {
  PagedKv kv;
  kv.sizes_ = bench.sizes();
  kv.pages_ = Range(0, (kv.sizes_.tokens + kv.sizes_.page_size - 1) / kv.sizes_.page_size);
  const auto make = [&](uint64_t offset) {
    const int64_t rows =
        static_cast<int64_t>(kv.pages_.size()) * kv.sizes_.page_size * kv.sizes_.num_kv_heads;
    return seed.has_value() ? Mirror::Random(bench, DataType::kBF16, rows, kv.sizes_.head_dim, *seed + offset)
                            : Mirror::Zeros(bench, DataType::kBF16, rows, kv.sizes_.head_dim);
  };
  KVBLEND_ASSIGN_OR_RETURN(kv.k_, make(0));
  KVBLEND_ASSIGN_OR_RETURN(kv.v_, make(1));
  // Neighbours in the sequence are none in memory, as after a while of serving.
  uint64_t state = 20261122;
  for (size_t i = kv.pages_.size() - 1; i > 0; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(kv.pages_[i], kv.pages_[(state >> 33) % (i + 1)]);
  }
  return kv;
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

absl::StatusOr<Both<kernels::BatchPlan>> PagedKv::Plan(Bench& bench,
                                                       const std::vector<int32_t>& positions) const {
  const std::vector<int32_t> rows = {0, static_cast<int32_t>(positions.size())};
  const std::vector<int32_t> pages = {0, static_cast<int32_t>(pages_.size())};
  const std::vector<int32_t> kv_len = {sizes_.tokens};
  return MakeBoth<kernels::BatchPlan>(bench, [&](kernels::Backend& backend) {
    return backend.PlanBatch({rows, positions, kv_len, pages, pages_, sizes_.page_size});
  });
}

absl::StatusOr<double> PagedKv::RelativeError(Bench& bench) const {
  KVBLEND_ASSIGN_OR_RETURN(const double k, k_.RelativeError(bench));
  KVBLEND_ASSIGN_OR_RETURN(const double v, v_.RelativeError(bench));
  return std::max(k, v);
}

absl::StatusOr<Both<kernels::RopeTable>> MakeRope(Bench& bench) {
  const Sizes& sizes = bench.sizes();
  std::vector<float> inv_freq(sizes.head_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(i) / sizes.head_dim));
  }
  return MakeBoth<kernels::RopeTable>(bench, [&](kernels::Backend& backend) {
    return backend.CreateRopeTable(
        {kernels::RopeLayout::kInterleaved, sizes.head_dim, /*max_position=*/sizes.tokens, inv_freq});
  });
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
