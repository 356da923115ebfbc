#include "kernels/cuda/runtime/kv_operations.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/runtime/bring_sections.h"
#include "kernels/cuda/runtime/objects.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/section_staging.h"
#include "kernels/cuda/runtime/step_recording.h"
#include "kernels/host/range_rows.h"

namespace kvblend::kernels::cuda {
namespace {

absl::Status Correct(DeviceStream& stream, const KvSource& k, const KvSource& v,
                     const KvCorrectionView& correction, MutableKvSectionView k_out,
                     MutableKvSectionView v_out) {
  const auto launch = CorrectsInTiles(k, v, correction) ? LaunchCorrectKvInTiles : LaunchCorrectKv;
  return StatusOf(launch(stream.handle(), k, v, correction, k_out, v_out), "CorrectKv");
}

// A recorded step is repeated with the table and pages that it used.
void NoteUse(DeviceStream& stream, const RopeTable& table, const KvPagesView& pages) {
  if (StepRecording* step = stream.recording()) {
    step->UsesRope(table);
    step->UsesPages(pages);
  }
}

absl::Status AddPlacement(DeviceStream& stream, const BatchPlan& batch, const KvSource& k, const KvSource& v,
                          const KvPagesView& pages, KvPlacements& placements) {
  KVBLEND_ASSIGN_OR_RETURN(auto plan, DeviceBatchPlan::From(batch));
  if (plan->num_rows() == 0) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(auto rows, plan->ViewOn(stream, pages.page_list));
  placements.items[placements.count++] = {rows, k, v};
  return absl::OkStatus();
}

absl::Status Scatter(absl::string_view op, DeviceStream& stream, const KvPlacements& placements,
                     const RopeTable& table, const KvPagesView& pages) {
  KVBLEND_ASSIGN_OR_RETURN(auto rope, DeviceRopeTable::From(table));
  if (placements.count == 0) return absl::OkStatus();
  NoteUse(stream, table, pages);
  return StatusOf(LaunchKvScatter(stream.handle(), placements, rope->view(), pages), op);
}

absl::Status Scatter(absl::string_view op, DeviceStream& stream, const BatchPlan& batch,
                     const RopeTable& table, const KvSource& k, const KvSource& v, const KvPagesView& pages) {
  KvPlacements placements;
  KVBLEND_RETURN_IF_ERROR(AddPlacement(stream, batch, k, v, pages, placements));
  return Scatter(op, stream, placements, table, pages);
}

// Items of one encoding, correction and type of memory, in device memory.
absl::Status LoadHere(DeviceStream& stream, absl::Span<const KvLoadItem> items, const RopeTable& table,
                      const KvPagesView& pages) {
  KVBLEND_ASSIGN_OR_RETURN(auto rope, DeviceRopeTable::From(table));
  KvPlacements placements;
  for (const KvLoadItem& item : items) {
    KVBLEND_RETURN_IF_ERROR(
        AddPlacement(stream, *item.plan, KvSource::Of(item.k), KvSource::Of(item.v), pages, placements));
  }
  if (items[0].correction == nullptr) return Scatter("KvLoad", stream, placements, table, pages);
  KVBLEND_ASSIGN_OR_RETURN(auto correction, DeviceKvCorrection::From(*items[0].correction));
  const KvCorrectionView view = correction->view();
  const bool in_tiles =
      std::all_of(placements.items, placements.items + placements.count, [&](const KvPlacement& placement) {
        return LoadsCorrectedInTiles(placement.k, placement.v, view, rope->view(), pages);
      });
  if (in_tiles && placements.count > 0) {
    NoteUse(stream, table, pages);
    return StatusOf(LaunchKvLoadCorrected(stream.handle(), placements, rope->view(), view,
                                          DenseType(items[0].k_memory.encoding), pages),
                    "KvLoadCorrected");
  }
  for (const KvLoadItem& item : items) {  // they may share memory
    if (item.plan->num_rows() == 0) continue;
    KVBLEND_RETURN_IF_ERROR(
        Correct(stream, KvSource::Of(item.k), KvSource::Of(item.v), view, item.k_memory, item.v_memory));
    KVBLEND_RETURN_IF_ERROR(Scatter("KvLoadCorrected", stream, *item.plan, table, KvSource::Of(item.k_memory),
                                    KvSource::Of(item.v_memory), pages));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ScatterKv(DeviceStream& stream, const BatchPlan& plan, const RopeTable& rope, ConstMatrixView k,
                       ConstMatrixView v, const KvPagesView& pages) {
  return Scatter("KvScatter", stream, plan, rope, KvSource::Of(k), KvSource::Of(v), pages);
}

absl::Status LoadAllKv(DeviceStream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                       const KvPagesView& pages) {
  static_assert(2 * kMaxKvPlacements <= SectionStaging::kSlots);  // K and V may be two copies
  std::vector<KvLoadItem> here;
  for (size_t i = 0; i < items.size(); ++i) {
    here.push_back(items[i]);
    KVBLEND_RETURN_IF_ERROR(BringToDevice(stream, here.back().k, here.back().v));
    const bool goes_on = i + 1 < items.size() && here.size() < kMaxKvPlacements &&
                         items[i + 1].correction == items[i].correction &&
                         items[i + 1].k.encoding == items[i].k.encoding &&
                         items[i + 1].k_memory.encoding == items[i].k_memory.encoding;
    if (goes_on) continue;
    KVBLEND_RETURN_IF_ERROR(stream.AwaitSections());
    KVBLEND_RETURN_IF_ERROR(LoadHere(stream, here, rope, pages));
    KVBLEND_RETURN_IF_ERROR(stream.ReleaseSections());
    here.clear();
  }
  return absl::OkStatus();
}

absl::Status CorrectStoredKv(DeviceStream& stream, KvSectionView k, KvSectionView v,
                             const KvCorrection& correction, MutableKvSectionView k_out,
                             MutableKvSectionView v_out) {
  KVBLEND_ASSIGN_OR_RETURN(auto own, DeviceKvCorrection::From(correction));
  if (k.rows == 0) return absl::OkStatus();
  if (!IsDeviceMemory(k_out.data) || !IsDeviceMemory(v_out.data)) {
    return absl::InvalidArgumentError(
        "CorrectKv: k_out and v_out: in host memory; allowed: memory of the backend");
  }
  KVBLEND_RETURN_IF_ERROR(BringToDevice(stream, k, v));
  KVBLEND_RETURN_IF_ERROR(stream.AwaitSections());
  KVBLEND_RETURN_IF_ERROR(Correct(stream, KvSource::Of(k), KvSource::Of(v), own->view(), k_out, v_out));
  return stream.ReleaseSections();
}

absl::Status SpreadDeviationOfRows(DeviceStream& stream, const BatchPlan& plan, const RopeTable& rope,
                                   absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                   const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                   const KvPagesView& pages) {
  constexpr absl::string_view kOp = "SpreadDeviation";
  KVBLEND_ASSIGN_OR_RETURN(auto batch, DeviceBatchPlan::From(plan));
  KVBLEND_ASSIGN_OR_RETURN(auto table, DeviceRopeTable::From(rope));
  KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(stream, kOp, "works on other ranges every time"));
  KVBLEND_ASSIGN_OR_RETURN(auto rows, batch->ViewOn(stream, pages.page_list));
  const int64_t cols = int64_t{pages.num_kv_heads} * pages.head_dim, all = 2 * kMaxSpreadRanges * cols;
  const auto launch = [&](const SpreadRanges& some) -> absl::Status {
    if (some.count == 0) return absl::OkStatus();
    // Rows outside of the ranges, as of chunks that are computed whole, need none.
    const SpreadRange& last = some.items[some.count - 1];
    const int32_t num_rows = last.first_sum + last.num_rows;
    const int64_t sums = 2 * num_rows * cols, weights = 2 * int64_t{num_rows};
    KVBLEND_ASSIGN_OR_RETURN(auto memory,
                             stream.ScratchMemory(DeviceStream::Scratch::kWorkspace,
                                                  (2 * (sums + weights) + all) * int64_t{sizeof(float)}));
    auto* const floats = static_cast<float*>(memory);
    const SpreadWorkspace workspace{.num_rows = num_rows,
                                    .before = floats,
                                    .after = floats + sums,
                                    .all = floats + 2 * sums,
                                    .before_weights = floats + 2 * sums + all,
                                    .after_weights = floats + 2 * sums + all + weights};
    return StatusOf(LaunchSpreadDeviation(stream.handle(), rows, table->view(), some, keys, values, k, v,
                                          workspace, pages),
                    kOp);
  };
  SpreadRanges some;
  const auto positions =
      absl::MakeConstSpan(batch->host_view().positions, static_cast<size_t>(plan.num_rows()));
  int32_t num_sums = 0;
  for (const auto& [begin, end, first_row, num_rows] : PartlyComputedRanges(positions, ranges)) {
    some.items[some.count++] = {begin, end, first_row, num_rows, num_sums};
    num_sums += num_rows;
    if (some.count < kMaxSpreadRanges) continue;
    KVBLEND_RETURN_IF_ERROR(launch(some));
    some.count = num_sums = 0;
  }
  return launch(some);
}

absl::Status EncodeStoredKv(DeviceStream& stream, ConstMatrixView in, MutableKvSectionView out) {
  const int64_t bytes = out.layout().size_bytes;
  if (bytes == 0) return absl::OkStatus();
  const StreamHandle handle = stream.handle();
  void* const target = out.data;
  const bool on_device = IsDeviceMemory(target);
  if (!on_device) {
    KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(stream, "EncodeKv", "writes host memory"));
    KVBLEND_ASSIGN_OR_RETURN(auto memory,
                             stream.ScratchMemory(DeviceStream::Scratch::kEncodedSection, bytes));
    out.data = memory;
  }
  KVBLEND_RETURN_IF_ERROR(EnqueueZero(handle, out.data, bytes));  // the padding
  KVBLEND_RETURN_IF_ERROR(StatusOf(LaunchEncodeKv(handle, in, out), "EncodeKv"));
  return on_device ? absl::OkStatus() : EnqueueCopyToHost(handle, target, out.data, bytes);
}

}  // namespace kvblend::kernels::cuda
