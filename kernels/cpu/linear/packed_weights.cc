#include "kernels/cpu/linear/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/float_convert.h"

namespace kvblend::kernels {
namespace {

// Wide enough for oneDNN to run at full speed, narrow enough that few rows still feed several threads.
constexpr int64_t kPanelWidth = 4 * kPackedBlock;

absl::Status NoMemory(int64_t rows, int64_t cols) {
  return absl::ResourceExhaustedError(absl::StrCat("PackWeights: no memory for ", rows, " x ", cols));
}

// rows: [panel.count, cols] of dtype. oneDNN multiplies by [cols, count]: the transpose of the rows.
void FillPanel(DataType dtype, int64_t cols, std::byte* rows, const WeightPanel& panel) {
  const auto type = dtype == DataType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  const dnnl::memory::desc transposed({cols, panel.count}, type, dnnl::memory::dims{1, cols});
  dnnl::memory source(transposed, OneDnnEngine(), rows), target = panel.memory;
  dnnl::reorder reorder;
  {
    absl::MutexLock lock(&OneDnnCreationMutex());
    reorder = dnnl::reorder(source, target);
  }
  dnnl::stream stream(OneDnnEngine());
  reorder.execute(stream, source, target);
  stream.wait();
}

/// The rows of a source, rounded to the nearest of 255 codes, with a step for every 32 columns.
class RoundedRows final : public WeightSource {
 public:
  RoundedRows(const WeightSource& source, int64_t cols) : source_(source), values_(cols) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    return source_.ReadRow(row, out);
  }
  std::optional<QuantizedFormat> FormatOf(int64_t row) const override {
    if (source_.FormatOf(row).has_value()) return std::nullopt;  // sources that mix both are kept as values
    return QuantizedFormat{.bits = 8, .group = kGroup, .zero_point = kZeroPoint, .has_minimum = false};
  }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    if (absl::Status status = source_.ReadRow(row, absl::MakeSpan(values_)); !status.ok()) return status;
    for (size_t group = 0; group < out.scales.size(); ++group) {
      const absl::Span<const float> values = absl::MakeConstSpan(values_).subspan(group * kGroup, kGroup);
      float largest = 0, not_finite = 0;
      for (const float value : values) {
        largest = std::max(largest, std::abs(value));
        not_finite += value * 0.0f;  // becomes NaN by a NaN or an infinity
      }
      // The step as the matrix will hold it. Where it cannot, the matrix keeps values in place of codes.
      const float step = F16ToF32(F32ToF16(largest / kLargestCode)),
                  inverse = step > 0 && std::isfinite(step) ? 1.0f / step : 0.0f;
      out.scales[group] = largest / kLargestCode + not_finite;
      out.minimums[group] = 0;
      for (int64_t i = 0; i < kGroup; ++i) {
        const float code = not_finite == 0 ? std::nearbyint(values[i] * inverse) : 0.0f;
        out.codes[group * kGroup + i] =
            static_cast<uint8_t>(std::clamp(code, -kLargestCode, kLargestCode) + kZeroPoint);
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int32_t kGroup = 32, kZeroPoint = 128;
  static constexpr float kLargestCode = 127.0f;
  const WeightSource& source_;
  mutable std::vector<float> values_;  // sources are used by one thread at a time
};

}  // namespace

int64_t WeightPanels::Bytes(DataType dtype, int64_t rows, int64_t cols) {
  return static_cast<int64_t>(PackedGemmDesc(dtype, cols, rows).get_size());
}

WeightPanels WeightPanels::Over(DataType dtype, int64_t rows, int64_t cols, std::byte* data) {
  // Creating a memory object zeroes its padding, so the whole comes first and only then what shares its
  // bytes.
  WeightPanels result{{0, rows, dnnl::memory(PackedGemmDesc(dtype, cols, rows), OneDnnEngine(), data)}, {}};
  for (int64_t first = 0; first < rows; first += kPanelWidth) {
    const int64_t count = std::min(kPanelWidth, rows - first);
    std::byte* panel = data + first * PackedColumns(dtype, cols) * SizeOf(dtype);
    result.panels.push_back(
        {first, count, dnnl::memory(PackedGemmDesc(dtype, cols, count), OneDnnEngine(), panel)});
  }
  return result;
}

absl::StatusOr<std::unique_ptr<CpuWeights>> CpuWeights::Create(CpuContext& context, int64_t rows,
                                                               int64_t cols, WeightUsage usage,
                                                               const WeightSource& source) {
  std::unique_ptr<CpuWeights> weights(new CpuWeights(rows, cols, usage, context));
  const RoundedRows rounded(source, cols);
  const bool round = context.codes != nullptr && !IsEmbedding(usage) && !source.FormatOf(0).has_value();
  auto quantized = QuantizedMatrix::Create(context.weights, rows, cols,
                                           round ? static_cast<const WeightSource&>(rounded) : source);
  if (!quantized.ok()) return quantized.status();
  weights->quantized_ = *std::move(quantized);
  if (weights->quantized_ != nullptr) return weights;
  try {
    if (absl::Status status = weights->PackValues(context, source); !status.ok()) return status;
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("PackWeights: oneDNN: ", error.what()));
  }
  return weights;
}

absl::Status CpuWeights::PackValues(CpuContext& context, const WeightSource& source) {
  const int64_t row_bytes = cols_ * SizeOf(dtype_);
  ScratchPool::Lease panel_rows;
  if (usage_ != WeightUsage::kEmbedding) {
    KVBLEND_ASSIGN_OR_RETURN(packed_, context.weights.Allocate(WeightPanels::Bytes(dtype_, rows_, cols_)));
    panel_rows = context.scratch.Borrow(std::min(kPanelWidth, rows_) * row_bytes);
    if (!panel_rows) return NoMemory(rows_, cols_);
    panels_ = WeightPanels::Over(dtype_, rows_, cols_, packed_.get());
  }
  if (usage_ == WeightUsage::kEmbedding) {
    KVBLEND_ASSIGN_OR_RETURN(embedding_, context.weights.Allocate(rows_ * row_bytes));
  }
  std::vector<float> row(cols_);
  for (int64_t first = 0; first < rows_; first += kPanelWidth) {
    const int64_t count = std::min(kPanelWidth, rows_ - first);
    for (int64_t r = 0; r < count; ++r) {
      if (absl::Status status = source.ReadRow(first + r, absl::MakeSpan(row)); !status.ok()) return status;
      std::byte* panel_row = !panel_rows ? nullptr : panel_rows.data() + r * row_bytes;
      std::byte* embedding_row = embedding_ == nullptr ? nullptr : embedding_.get() + (first + r) * row_bytes;
      for (std::byte* target : {panel_row, embedding_row}) {
        if (target != nullptr) simd::ConvertRow(row.data(), DataType::kF32, target, dtype_, cols_);
      }
    }
    if (panel_rows) FillPanel(dtype_, cols_, panel_rows.data(), panels_.panels[first / kPanelWidth]);
  }
  return absl::OkStatus();
}

const uint32_t* CpuWeights::Block(int64_t index, uint32_t* scratch) const {
  const int64_t steps =
      PackedColumns(dtype_, cols_) * SizeOf(dtype_) / static_cast<int64_t>(sizeof(uint32_t));
  if (quantized_ == nullptr) {
    return reinterpret_cast<const uint32_t*>(packed_.get()) + index * steps * kPackedBlock;
  }
  constexpr int64_t kColumns = kPackedBlock / kColumnOutputs;
  for (int64_t c = 0; c < kColumns; ++c) {
    uint32_t* target = scratch + c * kColumnOutputs;
    if (const int64_t column = index * kColumns + c; column < quantized_->num_columns()) {
      simd::ExpandColumn(quantized_->column(column), dtype_, target, kPackedBlock);
      continue;
    }
    for (int64_t step = 0; step < steps; ++step) {
      std::fill_n(target + step * kPackedBlock, kColumnOutputs, 0u);
    }
  }
  return scratch;
}

const uint32_t* CpuWeights::Column(int64_t index, uint32_t* scratch, int64_t* stride) const {
  if (quantized_ == nullptr) {
    constexpr int64_t kColumns = kPackedBlock / kColumnOutputs;
    *stride = kPackedBlock;
    return Block(index / kColumns, nullptr) + index % kColumns * kColumnOutputs;
  }
  *stride = kColumnOutputs;
  if (index < quantized_->num_columns()) {
    simd::ExpandColumn(quantized_->column(index), dtype_, scratch, kColumnOutputs);
  } else {
    const int64_t steps =
        PackedColumns(dtype_, cols_) * SizeOf(dtype_) / static_cast<int64_t>(sizeof(uint32_t));
    std::fill_n(scratch, steps * kColumnOutputs, 0u);
  }
  return scratch;
}

void CpuWeights::ReadEmbeddingRow(int64_t index, float* out) const {
  if (quantized_ != nullptr) return quantized_->ReadRow(index, out);
  if (embedding_ != nullptr) {
    simd::ConvertRow(embedding_.get() + index * cols_ * SizeOf(dtype_), dtype_, out, DataType::kF32, cols_);
    return;
  }
  // Read where products read it, so that embeddings that are weights of a product too lie in memory once.
  const uint32_t* words = Block(index / kPackedBlock, nullptr) + index % kPackedBlock;
  const int64_t per_word = static_cast<int64_t>(sizeof(uint32_t)) / SizeOf(dtype_);
  for (int64_t i = 0; i < cols_; ++i) {
    const uint32_t word = words[i / per_word * kPackedBlock];
    // bf16 is the upper half of a float; the even input lies below.
    out[i] = std::bit_cast<float>(per_word == 1 ? word : i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
}

absl::StatusOr<const CpuWeights*> CpuWeights::From(const PackedWeights& weights, DataType dtype) {
  KVBLEND_ASSIGN_OR_RETURN(const auto* cpu, OfOwnKind<CpuWeights>(weights, "the PackedWeights were"));
  if (cpu->dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("the PackedWeights were made by a backend that computes in ",
                     std::string(Name(cpu->dtype())), "; allowed: ", std::string(Name(dtype))));
  }
  return cpu;
}

}  // namespace kvblend::kernels
