#include "engine/model/weight_sources.h"

#include <cmath>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {

namespace {

constexpr int64_t kReleasedBytes = int64_t{1} << 20;  // at a time

}  // namespace

absl::Status CheckFinite(const GgufFile& file, const GgufTensor& tensor, int64_t row,
                         absl::Span<const float> values) {
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return absl::DataLossError(Concat(file.name(), ": tensor '", tensor.name, "' holds ", value, " in row ",
                                        row, "; allowed: finite numbers"));
    }
  }
  return absl::OkStatus();
}

const GgufTensor& StackedTensors::Find(int64_t* row) const {
  const int64_t expert = *row / rows_of_expert_;
  *row %= rows_of_expert_;
  size_t index = 0;
  while (*row >= parts_[index].rows) *row -= parts_[index++].rows;
  const Part& part = parts_[index];
  if (part.tensors.size() > 1) return *part.tensors[expert];
  *row += expert * part.rows;
  return *part.tensors[0];
}

absl::Status StackedTensors::ReadRow(int64_t row, absl::Span<float> out) const {
  const GgufTensor& tensor = Find(&row);
  CountRow(tensor);
  KVBLEND_RETURN_IF_ERROR(tensor.ReadRow(row, out));
  return CheckFinite(file_, tensor, row, out);
}

std::optional<kernels::QuantizedFormat> StackedTensors::FormatOf(int64_t row) const {
  return Find(&row).quantized_format();
}

absl::Status StackedTensors::ReadCodes(int64_t row, const kernels::QuantizedRow& out) const {
  const GgufTensor& tensor = Find(&row);
  CountRow(tensor);
  KVBLEND_RETURN_IF_ERROR(tensor.ReadCodes(row, out));
  KVBLEND_RETURN_IF_ERROR(CheckFinite(file_, tensor, row, out.scales));
  return CheckFinite(file_, tensor, row, out.minimums);
}

void StackedTensors::CountRow(const GgufTensor& tensor) const {
  unreleased_ += tensor.stored_bytes() / tensor.rows();
  if (unreleased_ >= kReleasedBytes) ReleasePages();
}

void StackedTensors::ReleasePages() const {
  if (observer_ != nullptr) observer_(unreleased_);
  unreleased_ = 0;
  for (const Part& part : parts_) {
    for (const GgufTensor* tensor : part.tensors) tensor->ReleasePages();
  }
}

int64_t ReorderedHeads::Of(int64_t row) const {
  const auto head_dim = static_cast<int64_t>(order_.size());
  const int64_t head = row / head_dim;
  return head < num_heads_ ? head * head_dim + order_[row % head_dim] : row;
}

}  // namespace kvblend::model
