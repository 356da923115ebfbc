// What the kernels' benches share: the backend under test, matrices, pages, and how figures are reported.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/host/float_convert.h"
#include "tests/bench/machine_peaks.h"

namespace kvblend::kernels {

// The shapes of SmolLM2-135M, and a prompt of ten passages.
inline constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64, kPageSize = 64, kContext = 6000, kLayers = 30;
inline constexpr int kWidth = kHeads * kHeadDim, kKvWidth = kKvHeads * kHeadDim;
inline constexpr float kScale = 0.125f;

inline int num_threads = 0;         // one per available processor
inline bool pages_in_rows = false;  // in place of the backend's best layout
inline CpuBackendOptions::Gemm gemm = CpuBackendOptions::Gemm::kAuto;

inline Backend& Cpu() {
  static const auto backend = CreateCpuBackend({.num_threads = num_threads, .gemm = gemm}).value();
  return *backend;
}
inline Stream& TheStream() {
  static const auto stream = Cpu().CreateStream().value();
  return *stream;
}

/// What weights that are no codes are multiplied as.
inline GemmOperands OperandsOfFloats() {
  return Cpu().Describe().find("bf16 (oneDNN") != std::string::npos ? GemmOperands::kBF16
                                                                    : GemmOperands::kF32;
}
/// What weights that are codes are multiplied as by so many rows. The backend chooses by the processor, and
/// says so in its description.
inline GemmOperands OperandsOfCodes(int64_t rows, WeightUsage usage = WeightUsage::kLinear) {
  const std::string description = Cpu().Describe();
  const auto has = [&](const char* what) { return description.find(what) != std::string::npos; };
  const bool few = rows <= simd::kMaxQuantizedRows;
  if (has("GEMM in int8") || (!few && usage != WeightUsage::kLinear && has("asymmetric int8"))) {
    return GemmOperands::kInt8;
  }
  if (few && has("of few rows in int16")) return GemmOperands::kInt16;
  return has("GEMM in int16") ? GemmOperands::kInt16 : OperandsOfFloats();
}
/// What attention over pages of bf16 multiplies.
inline GemmOperands OperandsOfAttention() {
  return Cpu().Describe().find("attention in int16") != std::string::npos ? GemmOperands::kInt16
                                                                          : OperandsOfFloats();
}

// Cheap pseudo-random values in [-1, 1).
inline float Uniform(int64_t i) {
  return static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u)) * 0x1p-31f;
}

inline PageLayout LayoutOfPages(int32_t page_size) {
  return pages_in_rows ? PageLayout::kRows : Cpu().best_page_layout(DataType::kBF16, page_size, kHeadDim);
}

struct Matrix {
  Matrix(DataType dtype, int64_t rows, int64_t cols)
      : buffer(Cpu().Allocate(rows * cols * SizeOf(dtype)).value()),
        view{buffer->data(), dtype, rows, cols, cols} {
    for (int64_t i = 0; i < rows * cols; ++i) StoreElement(view.data, dtype, i, Uniform(i));
  }
  std::unique_ptr<Buffer> buffer;
  MatrixView view;
};

/// Weights as codes with a scale for 32 inputs, as Q4_0 and Q8_0 have them.
class CodeRows final : public WeightSource {
 public:
  explicit CodeRows(int32_t bits) : bits_(bits) {}

  absl::Status ReadRow(int64_t, absl::Span<float>) const override {
    return absl::UnimplementedError("these weights are codes");
  }
  std::optional<QuantizedFormat> FormatOf(int64_t) const override {
    return QuantizedFormat{.bits = bits_, .group = 32, .zero_point = 1 << (bits_ - 1), .has_minimum = false};
  }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    const size_t values = size_t{1} << bits_;
    for (size_t i = 0; i < out.codes.size(); ++i) {
      out.codes[i] = static_cast<uint8_t>((static_cast<size_t>(row) + 7 * i) % values);
    }
    std::fill(out.scales.begin(), out.scales.end(), 0x1p-8f);
    return absl::OkStatus();
  }

 private:
  const int32_t bits_;
};

inline KvPagesView PagesOf(const Matrix& k, const Matrix& v, int32_t num_pages, int32_t page_size) {
  return {.k = k.view.data,
          .v = v.view.data,
          .dtype = DataType::kBF16,
          .layout = LayoutOfPages(page_size),
          .num_pages = num_pages,
          .num_kv_heads = kKvHeads,
          .page_size = page_size,
          .head_dim = kHeadDim};
}

// One sequence of kContext tokens, its pages in shuffled order.
struct Kv {
  explicit Kv(const std::vector<int32_t>& positions)
      : k(DataType::kBF16, kPages, int64_t{kKvHeads} * kPageSize * kHeadDim),
        v(DataType::kBF16, kPages, int64_t{kKvHeads} * kPageSize * kHeadDim) {
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    const std::vector<int32_t> row_indptr = {0, static_cast<int32_t>(positions.size())}, kv_len = {kContext},
                               page_indptr = {0, kPages};
    plan = Cpu().PlanBatch({row_indptr, positions, kv_len, page_indptr, pages, kPageSize}).value();
    view = PagesOf(k, v, kPages, kPageSize);
  }
  static constexpr int32_t kPages = (kContext + kPageSize - 1) / kPageSize;
  Matrix k, v;
  std::unique_ptr<BatchPlan> plan;
  KvPagesView view;
};

// `count` positions spread evenly, the last one at the end.
inline std::vector<int32_t> Spread(int64_t count) {
  std::vector<int32_t> positions;
  for (int64_t i = 1; i <= count; ++i) positions.push_back(static_cast<int32_t>(i * kContext / count - 1));
  return positions;
}

// The last `count` positions.
inline std::vector<int32_t> Last(int64_t count) {
  std::vector<int32_t> positions(count);
  std::iota(positions.begin(), positions.end(), kContext - static_cast<int32_t>(count));
  return positions;
}
inline double SeenKeys(const std::vector<int32_t>& positions) {
  return std::accumulate(positions.begin(), positions.end(), static_cast<double>(positions.size()));
}

// Runs `operation` for every iteration and keeps the time that it took.
template <typename Operation>
double Measure(benchmark::State& state, const Operation& operation) {
  const double start = Seconds();
  for (auto _ : state) {
    if (const absl::Status status = operation(); !status.ok()) {
      state.SkipWithError(std::string(status.message()).c_str());
      break;
    }
  }
  return (Seconds() - start) / static_cast<double>(state.iterations());
}

inline void ReportFlops(benchmark::State& state, double seconds, double flops, GemmOperands operands) {
  state.counters["GFLOP/s"] = flops / seconds / 1e9;
  state.counters["of_peak"] = flops / seconds / 1e9 / GemmPeakGflops(operands);
}

/// Bytes that are only read, from memory that no cache holds.
inline void ReportRead(benchmark::State& state, double seconds, double bytes) {
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["of_read"] = bytes / seconds / 1e9 / ReadGbps();
}

/// Bytes read and written together, of an operation that touches `footprint` bytes in every iteration.
inline void ReportMoved(benchmark::State& state, double seconds, double bytes, double footprint) {
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["of_copy"] = bytes / seconds / 1e9 / CopyGbps(static_cast<int64_t>(footprint));
}

}  // namespace kvblend::kernels
