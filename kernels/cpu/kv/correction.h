// Corrections of stored KV (kernels/kv_correction.h) on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kv_correction.h"
#include "kernels/kv_section.h"

namespace kvblend::kernels {

/// Rows and rank are padded with zeros to whole vectors. Immutable.
class CpuKvCorrection final : public KvCorrection {
 public:
  explicit CpuKvCorrection(const KvCorrectionSpec& spec);
  int64_t cols() const override { return cols_; }
  simd::CorrectionWeights weights() const;
  bool has_map() const { return rank_ > 0; }
  /// REQUIRES: !has_map(), cols() is a multiple of 32
  simd::ScaleAndOffset scale_and_offset(KvPart part) const;

 private:
  const int64_t cols_, row_stride_, rank_, map_rank_;
  std::vector<float> scale_, offset_, down_, up_;
  std::vector<uint32_t> down_pairs_, up_pairs_;          // in bf16
  std::vector<float> scale_in_pairs_, offset_in_pairs_;  // see ScaleAndOffset; empty with a map
};

/// Rows are split over the context's threads.
void CpuCorrectKv(CpuContext& context, KvSectionView k, KvSectionView v, const CpuKvCorrection& correction,
                  MutableKvSectionView k_out, MutableKvSectionView v_out);

/// Whether CorrectStoredRows takes the correction and sections of this kind, for outputs of that encoding.
bool CorrectsStoredRows(const CpuContext& context, const CpuKvCorrection& correction, const KvSectionView& in,
                        KvEncoding out);
/// What CpuCorrectKv makes of rows [row, row + count), in bf16. k_out, v_out: [count, cols]
/// REQUIRES: CorrectsStoredRows
void CorrectStoredRows(KvSectionView k, KvSectionView v, const CpuKvCorrection& correction, int64_t row,
                       int64_t count, uint16_t* k_out, uint16_t* v_out);

}  // namespace kvblend::kernels
