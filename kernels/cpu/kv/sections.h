// KV on its way into pages, and into and out of its stored form. Arguments were checked by Backend. Rows are
// split over the context's threads.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/kv/correction.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/host/batch_plan.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Where rows of KV go.
struct KvTarget {
  const HostBatchPlan& plan;
  const HostRopeTable& rope;
  KvPagesView pages;
};

void CpuKvScatter(CpuContext& context, const KvTarget& target, ConstMatrixView k, ConstMatrixView v);
void CpuKvLoad(CpuContext& context, const KvTarget& target, KvSectionView k, KvSectionView v);
/// CpuKvLoad of what CpuCorrectKv makes of k and v. k_memory, v_memory: as its outputs
void CpuKvLoadCorrected(CpuContext& context, const KvTarget& target, KvSectionView k, KvSectionView v,
                        const CpuKvCorrection& correction, MutableKvSectionView k_memory,
                        MutableKvSectionView v_memory);
void CpuEncodeKv(CpuContext& context, ConstMatrixView in, MutableKvSectionView out);
void CpuKvDeviation(CpuContext& context, ConstMatrixView fresh, KvSectionView stored, float* out);

}  // namespace kvblend::kernels
