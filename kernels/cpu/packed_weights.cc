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

// Wide enough for oneDNN to run at full speed, narrow enough that a panel of a few hundred columns stays in a
// second-level cache of 1 MiB while row block after row block passes by, and that few rows still feed all
// threads.
constexpr int64_t kPanelWidth = 256;
constexpr int64_t kBlock = 64;  // outputs in a block of oneDNN's layout

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The inner number of columns when the layout is blocks of 64 outputs as simd::PackedMatVec wants them, else
// 0.
int64_t MatVecColumns(const dnnl::memory::desc& desc, DataType dtype) {
  const dnnl_memory_desc_t& d = desc.data;
  const auto& blocking = d.format_desc.blocking;
  if (d.format_kind != dnnl_blocked || d.ndims != 2) return 0;
  const bool f32 = blocking.inner_nblks == 2 && dtype == DataType::kF32;
  const bool bf16 = blocking.inner_nblks == 3 && dtype == DataType::kBF16 && blocking.inner_blks[2] == 2 &&
                    blocking.inner_idxs[2] == 0;
  if (!f32 && !bf16) return 0;
  if (blocking.inner_blks[0] != 16 || blocking.inner_idxs[0] != 0) return 0;
  if (blocking.inner_blks[1] != kBlock || blocking.inner_idxs[1] != 1) return 0;
  const int64_t k = d.padded_dims[0], k_block = f32 ? 16 : 32;
  if (blocking.strides[0] != k_block * kBlock || blocking.strides[1] != k * kBlock) return 0;
  return k;
}

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
      if (absl::Status status = weights->LayOutPanels(); !status.ok()) return status;
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

absl::Status CpuWeights::LayOutPanels() {
  const int64_t num_panels = (rows_ + kPanelWidth - 1) / kPanelWidth;
  const int64_t width = RoundUp((rows_ + num_panels - 1) / num_panels, kBlock);
  std::vector<dnnl::memory::desc> descs;
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
  for (int64_t first = 0; first < rows_; first += width) {
    const int64_t count = std::min(width, rows_ - first);
    auto desc = PackedGemmDesc(dtype_, cols_, count);
    if (!desc.ok()) return desc.status();
    const int64_t k = MatVecColumns(*desc, dtype_);
    mat_vec_k_ = first == 0 || k == mat_vec_k_ ? k : 0;
    offsets.push_back(bytes);
    bytes += RoundUp(static_cast<int64_t>(desc->get_size()), 64);
    descs.push_back(*std::move(desc));
    panels_.push_back({first, count, dnnl::memory()});
  }
  packed_ = AllocateHuge(bytes);
  if (packed_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("PackWeights: no memory for ", rows_, " x ", cols_));
  }
  for (size_t i = 0; i < panels_.size(); ++i) {
    panels_[i].memory = dnnl::memory(descs[i], OneDnnEngine(), packed_.get() + offsets[i]);
  }
  return absl::OkStatus();
}

absl::Status CpuWeights::Pack(RowReader reader) {
  const auto type = dtype_ == DataType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  dnnl::stream stream(OneDnnEngine());
  std::vector<float> row(cols_);
  const int64_t row_bytes = cols_ * SizeOf(dtype_);
  const int64_t panel_rows = panels_.empty() ? 0 : panels_[0].count;
  HugeBytes rows_of_panel = AllocateHuge(panel_rows * row_bytes);
  if (rows_of_panel == nullptr) return absl::ResourceExhaustedError("PackWeights: no memory for a panel");

  const auto read_row = [&](int64_t index, std::byte* panel_row) -> absl::Status {
    if (absl::Status status = reader(index, absl::MakeSpan(row)); !status.ok()) return status;
    std::byte* embedding_row = embedding_ == nullptr ? nullptr : embedding_.get() + index * row_bytes;
    for (std::byte* target : {panel_row, embedding_row}) {
      if (target != nullptr) simd::ConvertRow(row.data(), DataType::kF32, target, dtype_, cols_);
    }
    return absl::OkStatus();
  };

  if (panels_.empty()) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (absl::Status status = read_row(r, nullptr); !status.ok()) return status;
    }
  }
  for (Panel& panel : panels_) {
    for (int64_t r = 0; r < panel.count; ++r) {
      std::byte* target = rows_of_panel.get() + r * row_bytes;
      if (absl::Status status = read_row(panel.first + r, target); !status.ok()) return status;
    }
    // oneDNN multiplies by [cols, count]: the transpose of the rows.
    const dnnl::memory::desc transposed({cols_, panel.count}, type, dnnl::memory::dims{1, cols_});
    dnnl::memory source(transposed, OneDnnEngine(), rows_of_panel.get());
    dnnl::reorder(source, panel.memory).execute(stream, source, panel.memory);
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
