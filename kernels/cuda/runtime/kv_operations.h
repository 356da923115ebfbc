// The CUDA backend's operations on KV other than attention. What kernels/backend.h requires was checked;
// sections may lie in host memory.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

/// KvScatter.
absl::Status ScatterKv(DeviceStream& stream, const BatchPlan& plan, const RopeTable& rope, ConstMatrixView k,
                       ConstMatrixView v, const KvPagesView& pages);
/// KvLoadAll: neighbours of one encoding, correction and type of memory go into one launch.
absl::Status LoadAllKv(DeviceStream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                       const KvPagesView& pages);
/// CorrectKv.
absl::Status CorrectStoredKv(DeviceStream& stream, KvSectionView k, KvSectionView v,
                             const KvCorrection& correction, MutableKvSectionView k_out,
                             MutableKvSectionView v_out);
/// SpreadDeviation.
absl::Status SpreadDeviationOfRows(DeviceStream& stream, const BatchPlan& plan, const RopeTable& rope,
                                   absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                   const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                   const KvPagesView& pages);
/// EncodeKv.
absl::Status EncodeStoredKv(DeviceStream& stream, ConstMatrixView in, MutableKvSectionView out);

}  // namespace kvblend::kernels::cuda
