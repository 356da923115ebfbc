#include "kernels/cpu/linear/packed_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/simd/simd.h"

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
  std::unique_ptr<CpuWeights> weights(new CpuWeights(rows, cols, usage, context.gemm_dtype));
  auto quantized = QuantizedMatrix::Create(context.weights, rows, cols, source);
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
    packed_ = context.weights.Allocate(WeightPanels::Bytes(dtype_, rows_, cols_));
    panel_rows = context.scratch.Borrow(std::min(kPanelWidth, rows_) * row_bytes);
    if (packed_ == nullptr || !panel_rows) return NoMemory(rows_, cols_);
    panels_ = WeightPanels::Over(dtype_, rows_, cols_, packed_.get());
  }
  if (usage_ != WeightUsage::kLinear) {
    embedding_ = context.weights.Allocate(rows_ * row_bytes);
    if (embedding_ == nullptr) return NoMemory(rows_, cols_);
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

void CpuWeights::ReadEmbeddingRow(int64_t index, float* out) const {
  if (quantized_ != nullptr) return quantized_->ReadRow(index, out);
  simd::ConvertRow(embedding_.get() + index * cols_ * SizeOf(dtype_), dtype_, out, DataType::kF32, cols_);
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
