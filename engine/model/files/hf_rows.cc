#include "engine/model/files/hf_rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/model/gguf/dequantize.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

float LoadScale(const HfMatrix& matrix, int64_t index) {
  float scale = 0;
  const int64_t size = SizeOf(matrix.scale_dtype);
  // It cannot fail for a whole element of a type that is not quantized.
  DequantizeRow(GgufTypeOf(matrix.scale_dtype), matrix.scales.subspan(index * size, size), {&scale, 1})
      .IgnoreError();
  return scale;
}

class HfRows final : public TensorRows {
 public:
  HfRows(std::vector<HfMatrix> parts, int64_t rotary_head)
      : parts_(std::move(parts)), rotary_head_(rotary_head) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    const HfMatrix& part = parts_[row / parts_[0].rows];
    int64_t stored = row % part.rows;
    if (rotary_head_ > 0) {
      const int64_t in_head = stored % rotary_head_;
      stored += in_head % 2 * (rotary_head_ / 2) + in_head / 2 - in_head;
    }
    const int64_t bytes = part.cols * SizeOf(part.dtype);
    const absl::Span<const std::byte> data = part.data.subspan(stored * bytes, bytes);
    if (part.dtype != SafeDtype::kF8E4M3) return DequantizeRow(GgufTypeOf(part.dtype), data, out);
    const int64_t blocks = (part.cols + part.block_cols - 1) / part.block_cols;
    for (int64_t block = 0; block < blocks; ++block) {
      const float scale = LoadScale(part, stored / part.block_rows * blocks + block);
      const int64_t end = std::min(part.cols, (block + 1) * part.block_cols);
      for (int64_t c = block * part.block_cols; c < end; ++c) {
        out[c] = E4M3ToF32(static_cast<uint8_t>(data[c])) * scale;
      }
    }
    return absl::OkStatus();
  }

  std::string_view type_name() const override { return Name(parts_[0].dtype); }

  std::string recipe() const override {
    return Concat("Hugging Face ", type_name(), ", ", parts_.size(), " parts, rotary heads of ", rotary_head_,
                  ", scales of ", parts_[0].block_rows, " x ", parts_[0].block_cols);
  }

  std::vector<absl::Span<const std::byte>> more() const override {
    std::vector<absl::Span<const std::byte>> pieces;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (i > 0) pieces.push_back(parts_[i].data);
      if (!parts_[i].scales.empty()) pieces.push_back(parts_[i].scales);
    }
    return pieces;
  }

 private:
  const std::vector<HfMatrix> parts_;
  const int64_t rotary_head_;
};

}  // namespace

TensorType GgufTypeOf(SafeDtype dtype) {
  if (dtype == SafeDtype::kF16) return TensorType::kF16;
  return dtype == SafeDtype::kBF16 ? TensorType::kBF16 : TensorType::kF32;
}

float E4M3ToF32(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<float>::quiet_NaN();
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

std::shared_ptr<const TensorRows> MakeHfRows(std::vector<HfMatrix> parts, int64_t rotary_head) {
  const bool as_they_lie = parts.size() == 1 && rotary_head == 0 && parts[0].dtype != SafeDtype::kF8E4M3;
  if (as_they_lie) return nullptr;
  return std::make_shared<HfRows>(std::move(parts), rotary_head);
}

}  // namespace kvblend::model
