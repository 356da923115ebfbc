// RopeTable, KvCorrection and BatchPlan in device memory. Immutable after creation.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/cuda/runtime/plan_memory.h"

namespace kvblend::kernels::cuda {

class DeviceRopeTable final : public RopeTable {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceRopeTable>> Create(const RopeSpec& spec);
  static absl::StatusOr<const DeviceRopeTable*> From(const RopeTable& table);

  int64_t max_position() const override { return max_position_; }
  int64_t head_dim() const override { return head_dim_; }
  RopeView view() const;

 private:
  DeviceRopeTable(const RopeSpec& spec, std::unique_ptr<DeviceBuffer> buffer);
  const RopeLayout layout_;
  const int64_t max_position_, head_dim_;
  const std::unique_ptr<DeviceBuffer> buffer_;
};

/// f32, as the spec has them.
class DeviceKvCorrection final : public KvCorrection {
 public:
  /// REQUIRES: `spec` passed CheckKvCorrectionSpec.
  static absl::StatusOr<std::unique_ptr<DeviceKvCorrection>> Create(const KvCorrectionSpec& spec);
  static absl::StatusOr<const DeviceKvCorrection*> From(const KvCorrection& correction);

  int64_t cols() const override { return cols_; }
  KvCorrectionView view() const;

 private:
  DeviceKvCorrection(const KvCorrectionSpec& spec, std::unique_ptr<DeviceBuffer> buffer);
  const int64_t cols_, rank_;
  const bool has_tiles_;
  const std::unique_ptr<DeviceBuffer> buffer_;  // scale, offset, down, up and tiles, one behind the other
};

class DeviceBatchPlan final : public BatchPlan {
 public:
  /// `pool` must outlive the plan. REQUIRES: `spec` passed CheckBatchSpec.
  static absl::StatusOr<std::unique_ptr<DeviceBatchPlan>> Create(const BatchSpec& spec, PlanMemoryPool& pool);
  ~DeviceBatchPlan() override { pool_.Return(std::move(memory_)); }
  static absl::StatusOr<const DeviceBatchPlan*> From(const BatchPlan& plan);

  int64_t num_rows() const override { return view_.num_rows; }
  int64_t num_sequences() const override { return view_.num_sequences; }
  int64_t total_kv_len() const override { return total_kv_len_; }
  int64_t max_position() const override { return max_position_; }
  int64_t max_page_index() const override { return max_page_index_; }
  int32_t page_size() const override { return view_.page_size.divisor; }
  int32_t num_page_lists() const override { return num_page_lists_; }

  /// The arrays for what is enqueued on `stream` next or, while a step is recorded there, for the recording;
  /// of the lists of pages this one. REQUIRES: 0 <= page_list < num_page_lists()
  absl::StatusOr<PlanView> ViewOn(const DeviceStream& stream, int32_t page_list = 0) const;
  /// The same arrays in host memory, with all lists of pages, and how many pages each of these has.
  const PlanView& host_view() const { return host_view_; }
  int64_t page_list_size() const { return page_list_size_; }
  /// Whether every sequence has one row, as in a step of decoding.
  bool has_one_row_each() const;
  /// The most parts that attention splits a sequence's keys into: a power of two, so that few shapes come up
  /// while contexts grow.
  int32_t most_splits() const;
  /// Tiles, and how many blocks share a row tile so that `num_multiprocessors` are busy. `statistics`: for
  /// AttentionMass, whose kernels take one strip.
  AttentionShape ShapeOf(int32_t num_heads, const KvPagesView& pages, int num_multiprocessors,
                         bool statistics) const;

 private:
  DeviceBatchPlan(PlanMemoryPool& pool, std::unique_ptr<PlanMemory> memory)
      : pool_(pool), memory_(std::move(memory)) {}
  PlanMemoryPool& pool_;
  std::unique_ptr<PlanMemory> memory_;
  int64_t size_bytes_ = 0;
  PlanView view_, host_view_;
  int64_t page_list_size_ = 0;
  int32_t num_page_lists_ = 1;
  std::vector<int32_t> rows_of_, kv_len_;  // per sequence, on the host
  int32_t max_kv_len_ = 0;
  int64_t total_kv_len_ = 0;
  int64_t max_position_ = -1;
  int64_t max_page_index_ = -1;
};

}  // namespace kvblend::kernels::cuda
