#include "kernels/cpu/packed_weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

// Wide enough for oneDNN to run at full speed, narrow enough that few rows still feed several threads.
constexpr int64_t kPanelWidth = 4 * kPackedBlock;

}  // namespace

CpuWeights::HugeBytes CpuWeights::AllocateHuge(int64_t bytes) {
  // Weights are streamed: with 4 KiB pages the processor would miss its TLB at every other block.
  const size_t size = RoundUp(std::max<int64_t>(bytes, 1), 4096);
  auto* data = static_cast<std::byte*>(::operator new (size, std::align_val_t{kHugePage}, std::nothrow));
  if (data != nullptr && size >= kHugePage)
    madvise(data, size, MADV_HUGEPAGE);  // a hint; failure is harmless
  return HugeBytes(data);
}

absl::StatusOr<std::unique_ptr<CpuWeights>> CpuWeights::Create(int64_t rows, int64_t cols, WeightUsage usage,
                                                               DataType dtype, RowReader reader) {
  std::unique_ptr<CpuWeights> weights(new CpuWeights(rows, cols, usage, dtype));
  try {
    if (usage != WeightUsage::kEmbedding) {
      if (absl::Status status = weights->LayOut(); !status.ok()) return status;
    }
    if (usage != WeightUsage::kLinear) {
      weights->embedding_ = AllocateHuge(rows * cols * SizeOf(dtype));
      if (weights->embedding_ == nullptr) {
        return absl::ResourceExhaustedError(absl::StrCat("PackWeights: no memory for ", rows, " x ", cols));
      }
    }
    if (absl::Status status = weights->Pack(reader); !status.ok()) return status;
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("PackWeights: oneDNN: ", error.what()));
  }
  return weights;
}

absl::Status CpuWeights::LayOut() {
  const dnnl::memory::desc desc = PackedGemmDesc(dtype_, cols_, rows_);
  packed_ = AllocateHuge(static_cast<int64_t>(desc.get_size()));
  if (packed_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("PackWeights: no memory for ", rows_, " x ", cols_));
  }
  // Creating a memory object zeroes its padding, so the whole comes first and only then what shares its
  // bytes.
  all_ = {0, rows_, dnnl::memory(desc, OneDnnEngine(), packed_.get())};
  for (int64_t first = 0; first < rows_; first += kPanelWidth) {
    const int64_t count = std::min(kPanelWidth, rows_ - first);
    std::byte* data = packed_.get() + first * PackedColumns(dtype_, cols_) * SizeOf(dtype_);
    panels_.push_back(
        {first, count, dnnl::memory(PackedGemmDesc(dtype_, cols_, count), OneDnnEngine(), data)});
  }
  return absl::OkStatus();
}

absl::Status CpuWeights::Pack(RowReader reader) {
  const auto type = dtype_ == DataType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  dnnl::stream stream(OneDnnEngine());
  std::vector<float> row(cols_);
  const int64_t row_bytes = cols_ * SizeOf(dtype_);
  HugeBytes panel_rows = AllocateHuge(panels_.empty() ? 0 : panels_[0].count * row_bytes);
  if (panel_rows == nullptr) return absl::ResourceExhaustedError("PackWeights: no memory for a panel");
  for (int64_t first = 0; first < rows_; first += kPanelWidth) {
    const int64_t count = std::min(kPanelWidth, rows_ - first);
    for (int64_t r = 0; r < count; ++r) {
      if (absl::Status status = reader(first + r, absl::MakeSpan(row)); !status.ok()) return status;
      std::byte* panel_row = panels_.empty() ? nullptr : panel_rows.get() + r * row_bytes;
      std::byte* embedding_row = embedding_ == nullptr ? nullptr : embedding_.get() + (first + r) * row_bytes;
      for (std::byte* target : {panel_row, embedding_row}) {
        if (target != nullptr) simd::ConvertRow(row.data(), DataType::kF32, target, dtype_, cols_);
      }
    }
    if (panels_.empty()) continue;
    // oneDNN multiplies by [cols, count]: the transpose of the rows.
    const Panel& panel = panels_[first / kPanelWidth];
    const dnnl::memory::desc transposed({cols_, count}, type, dnnl::memory::dims{1, cols_});
    dnnl::memory source(transposed, OneDnnEngine(), panel_rows.get()), target = panel.memory;
    dnnl::reorder reorder;
    {
      absl::MutexLock lock(&OneDnnCreationMutex());
      reorder = dnnl::reorder(source, target);
    }
    reorder.execute(stream, source, target);
    stream.wait();
  }
  return absl::OkStatus();
}

absl::StatusOr<const CpuWeights*> CpuWeights::From(const PackedWeights& weights, DataType dtype) {
  const auto* cpu = dynamic_cast<const CpuWeights*>(&weights);
  if (cpu == nullptr)
    return absl::InvalidArgumentError("the PackedWeights were made by a backend of another kind");
  if (cpu->dtype() != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("the PackedWeights were made by a backend that computes in ",
                     std::string(Name(cpu->dtype())), "; allowed: ", std::string(Name(dtype))));
  }
  return cpu;
}

}  // namespace kvblend::kernels
