#include "kernels/cpu/kv/correction.h"

#include <algorithm>
#include <optional>

#include "kernels/cpu/kv/section_rows.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/host/float_convert.h"

namespace kvblend::kernels {
namespace {

/// Values [rows, cols] in rows of `stride`.
std::vector<float> Padded(absl::Span<const float> values, int64_t rows, int64_t cols, int64_t padded_rows,
                          int64_t stride) {
  std::vector<float> padded(padded_rows * stride, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(values.begin() + r * cols, cols, padded.begin() + r * stride);
  }
  return padded;
}

/// Rows 2i and 2i + 1 as row i of pairs in bf16.
std::vector<uint32_t> PairsOfRows(const std::vector<float>& values, int64_t cols) {
  std::vector<uint32_t> pairs(values.size() / 2);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const size_t even = i / cols * 2 * cols + i % cols;
    pairs[i] = F32ToBf16(values[even]) | uint32_t{F32ToBf16(values[even + cols])} << 16;
  }
  return pairs;
}

/// `values` in the order of ScaleAndOffset.
std::vector<float> InPairOrder(const std::vector<float>& values) {
  std::vector<float> ordered(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    constexpr size_t kPairs = simd::ScaleAndOffset::kPairs;
    const size_t channel = i % (2 * kPairs);
    ordered[i - channel + channel / 2 + channel % 2 * kPairs] = values[i];
  }
  return ordered;
}

/// Rows of a section of any encoding as f32. Used by one thread.
class RowReader {
 public:
  explicit RowReader(const KvSectionView& section) : section_(section) {
    if (IsQuantized(section.encoding)) decoder_.emplace(section);
  }
  void Read(int64_t row, float* out) const {
    if (decoder_.has_value()) return decoder_->Decode(row, out);
    const ConstMatrixView values = DenseMatrix(section_);
    simd::ConvertRow(values.Rows(row, 1).data, values.dtype, out, DataType::kF32, values.cols);
  }

 private:
  const KvSectionView section_;
  std::optional<RowDecoder> decoder_;
};

}  // namespace

CpuKvCorrection::CpuKvCorrection(const KvCorrectionSpec& spec)
    : cols_(spec.cols),
      row_stride_(RoundUp(2 * spec.cols, simd::kCorrectionLanes)),
      rank_(RoundUp(spec.rank, simd::kCorrectionLanes)),
      map_rank_(RoundUp(spec.rank, simd::kCorrectionLanes / 2)),
      scale_(Padded(spec.scale, 1, 2 * cols_, 1, row_stride_)),
      offset_(Padded(spec.offset, kNumKvCorrectionPlaces, 2 * cols_, kNumKvCorrectionPlaces, row_stride_)),
      down_(Padded(spec.down, 2 * cols_, spec.rank, 2 * cols_, rank_)),
      up_(Padded(spec.up, spec.rank, 2 * cols_, rank_, row_stride_)),
      down_pairs_(PairsOfRows(down_, std::max<int64_t>(rank_, 1))),
      up_pairs_(PairsOfRows(up_, row_stride_)) {
  if (has_map() || cols_ % kKvGroup != 0) return;
  scale_in_pairs_ = InPairOrder(scale_);
  offset_in_pairs_ = InPairOrder(offset_);
}

simd::ScaleAndOffset CpuKvCorrection::scale_and_offset(KvPart part) const {
  const int64_t first = part == KvPart::kKey ? 0 : cols_;
  return {scale_in_pairs_.data() + first, offset_in_pairs_.data() + first, row_stride_};
}

simd::CorrectionWeights CpuKvCorrection::weights() const {
  return {.scale = scale_.data(),
          .offset = offset_.data(),
          .down = down_.data(),
          .up = up_.data(),
          .down_pairs = down_pairs_.data(),
          .up_pairs = up_pairs_.data(),
          .channels = 2 * cols_,
          .row_stride = row_stride_,
          .rank = rank_,
          .map_rank = map_rank_};
}

// Whether stored rows are corrected while they are decoded. Others are decoded into rows of f32 first.
bool CorrectsStoredRows(const CpuContext& context, const CpuKvCorrection& correction, const KvSectionView& in,
                        KvEncoding out) {
  return correction.has_map() && context.gemm_dtype == DataType::kBF16 && simd::HasBf16Dots() &&
         in.cols % kKvGroup == 0 && out == KvEncoding::kBF16 &&
         (IsQuantized(in.encoding) || in.encoding == KvEncoding::kBF16);
}

void CorrectStoredRows(KvSectionView k, KvSectionView v, const CpuKvCorrection& correction, int64_t row,
                       int64_t count, uint16_t* k_out, uint16_t* v_out) {
  const simd::CorrectionWeights weights = correction.weights();
  auto* scratch = ThreadScratch<uint32_t>(ScratchSlot::kDecoded, weights.scratch_floats());
  simd::CorrectStoredRowsBf16(weights, row, StoredRowsOf(k, row, count), StoredRowsOf(v, row, count), k.cols,
                              scratch, k_out, v_out);
}

void CpuCorrectKv(CpuContext& context, KvSectionView k, KvSectionView v, const CpuKvCorrection& correction,
                  MutableKvSectionView k_out, MutableKvSectionView v_out) {
  if (CorrectsStoredRows(context, correction, k, k_out.encoding)) {
    const int64_t groups = (k.rows + kKvGroup - 1) / kKvGroup;
    context.pool.ParallelFor(groups, [&](int64_t group) {
      const int64_t begin = group * kKvGroup, count = std::min(kKvGroup, k.rows - begin);
      CorrectStoredRows(k, v, correction, begin, count, static_cast<uint16_t*>(k_out.data) + begin * k.cols,
                        static_cast<uint16_t*>(v_out.data) + begin * k.cols);
    });
    return;
  }
  const simd::CorrectionWeights weights = correction.weights();
  const DataType out_type = DenseType(k_out.encoding);
  auto* k_bytes = static_cast<std::byte*>(k_out.data);
  auto* v_bytes = static_cast<std::byte*>(v_out.data);
  const int64_t out_row_bytes = k.cols * SizeOf(out_type);
  ForRows(context.pool, k.rows, weights.row_stride * 8, [&](int64_t begin, int64_t end) {
    constexpr int64_t kRowsAtOnce = 16;  // with the weights in the second-level cache
    const RowReader keys(k), values(v);
    auto* rows = ThreadScratch<float>(ScratchSlot::kDecoded,
                                      kRowsAtOnce * weights.row_stride + weights.scratch_floats());
    float* scratch = rows + kRowsAtOnce * weights.row_stride;
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, end - first);
      for (int64_t i = 0; i < count; ++i) {
        float* row = rows + i * weights.row_stride;
        keys.Read(first + i, row);
        values.Read(first + i, row + k.cols);
        std::fill(row + weights.channels, row + weights.row_stride, 0.0f);
      }
      simd::CorrectRows(weights, first, count, scratch, rows);
      for (int64_t i = 0; i < count; ++i) {
        const float* row = rows + i * weights.row_stride;
        simd::ConvertRow(row, DataType::kF32, k_bytes + (first + i) * out_row_bytes, out_type, k.cols);
        simd::ConvertRow(row + k.cols, DataType::kF32, v_bytes + (first + i) * out_row_bytes, out_type,
                         k.cols);
      }
    }
  });
}

}  // namespace kvblend::kernels
