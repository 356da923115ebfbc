// A stored section of KV in a backend's memory, read by the definition in kernels/kv_section.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/host/kv_codec.h"
#include "kernels/kv_section.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {

inline constexpr KvEncoding kEncodings[] = {KvEncoding::kF32,  KvEncoding::kBF16, KvEncoding::kF16,
                                            KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8};
inline constexpr KvPart kParts[] = {KvPart::kKey, KvPart::kValue};

/// A section in a backend's memory, prefilled with bytes that no encoder writes by accident.
class Section {
 public:
  Section(Backend& backend, KvEncoding encoding, KvPart part, int64_t rows, int64_t cols)
      : backend_(backend),
        layout_(LayoutOf(encoding, part, rows, cols)),
        bytes_(layout_.size_bytes, std::byte{0xA5}),
        buffer_(*backend.Allocate(std::max<int64_t>(layout_.size_bytes, 1))) {
    view_ = {buffer_->data(), encoding, part, rows, cols};
    Upload();
  }

  MutableKvSectionView view() const { return view_; }
  const KvSectionLayout& layout() const { return layout_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void Upload() { CopyIn(backend_, *buffer_, bytes_.data(), layout_.size_bytes); }
  const std::vector<std::byte>& Download() {
    CopyOut(backend_, bytes_.data(), *buffer_, layout_.size_bytes);
    return bytes_;
  }

  // Read from the bytes by the definition in kernels/kv_section.h.
  double Bf16At(int64_t byte) const {
    uint16_t bits;
    std::memcpy(&bits, bytes_.data() + byte, 2);
    return std::bit_cast<float>(uint32_t{bits} << 16);
  }
  int64_t ScaleIndex(int64_t row, int64_t col) const {
    return view_.part == KvPart::kKey ? row / 32 * layout_.scale_cols + col
                                      : row * layout_.scale_cols + col / 32;
  }
  void SetStep(int64_t row, int64_t col, uint16_t bf16) {
    std::memcpy(bytes_.data() + layout_.steps + 2 * ScaleIndex(row, col), &bf16, 2);
  }
  double Offset(int64_t row, int64_t col) const { return Bf16At(layout_.offsets + 2 * ScaleIndex(row, col)); }
  double Step(int64_t row, int64_t col) const { return Bf16At(layout_.steps + 2 * ScaleIndex(row, col)); }
  /// As kernels/host/kv_codec.h decodes it.
  float Value(int64_t row, int64_t col) const {
    KvSectionView host = view_;
    host.data = bytes_.data();
    return LoadSectionElement(host, layout_, row, col);
  }
  int Code(int64_t row, int64_t col) const {
    const auto* codes =
        reinterpret_cast<const uint8_t*>(bytes_.data()) + layout_.codes + row * layout_.code_row_bytes;
    if (view_.encoding != KvEncoding::kInt4) return codes[col];
    return col % 2 == 0 ? codes[col / 2] & 15 : codes[col / 2] >> 4;
  }

 private:
  Backend& backend_;
  const KvSectionLayout layout_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<Buffer> buffer_;
  MutableKvSectionView view_;
};

/// What the backend of `values` makes of them, downloaded as well.
inline Section Encoded(Tensor& values, KvEncoding encoding, KvPart part) {
  Backend& backend = values.backend();
  Section section(backend, encoding, part, values.rows(), values.cols());
  EXPECT_OK(backend.EncodeKv(TestStream(backend), values.view(), section.view()));
  section.Download();
  return section;
}

}  // namespace kvblend::kernels
