#include "kernels/cuda/runtime/objects.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/checks.h"
#include "kernels/cuda/runtime/correction_tiles.h"
#include "kernels/cuda/runtime/step_recording.h"
#include "kernels/host/batch_plan.h"

namespace kvblend::kernels::cuda {
namespace {

// Copies on a stream of its own and waits.
absl::Status Upload(void* target, const void* source, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  auto stream = DeviceStream::Create();
  if (!stream.ok()) return stream.status();
  if (auto s = EnqueueCopyFromHost((*stream)->handle(), target, source, bytes); !s.ok()) return s;
  return SynchronizeStream((*stream)->handle());
}

}  // namespace

DeviceRopeTable::DeviceRopeTable(const RopeSpec& spec, std::unique_ptr<DeviceBuffer> buffer)
    : layout_(spec.layout),
      max_position_(spec.max_position),
      head_dim_(spec.head_dim),
      buffer_(std::move(buffer)) {}

absl::StatusOr<std::unique_ptr<DeviceRopeTable>> DeviceRopeTable::Create(const RopeSpec& spec) {
  auto host = HostRopeTable::Create(spec);
  if (!host.ok()) return host.status();
  const int64_t bytes = spec.max_position * spec.head_dim * static_cast<int64_t>(sizeof(float));
  auto buffer = DeviceBuffer::Allocate("CreateRopeTable", bytes);
  if (!buffer.ok()) return buffer.status();
  // The host's rows lie one after the other, in the layout that RopeView names.
  if (auto s = Upload((*buffer)->data(), (*host)->cos(0), bytes); !s.ok()) return s;
  return std::unique_ptr<DeviceRopeTable>(new DeviceRopeTable(spec, *std::move(buffer)));
}

absl::StatusOr<const DeviceRopeTable*> DeviceRopeTable::From(const RopeTable& table) {
  return OfOwnKind<DeviceRopeTable>(table, "the RopeTable was");
}

RopeView DeviceRopeTable::view() const {
  return {static_cast<const float*>(buffer_->data()), static_cast<int32_t>(head_dim_),
          layout_ == RopeLayout::kInterleaved};
}

static_assert(kMaxKvCorrectionRank <= kMaxCorrectionRank);

DeviceKvCorrection::DeviceKvCorrection(const KvCorrectionSpec& spec, std::unique_ptr<DeviceBuffer> buffer)
    : cols_(spec.cols), rank_(spec.rank), has_tiles_(HasTiles(spec)), buffer_(std::move(buffer)) {}

absl::StatusOr<std::unique_ptr<DeviceKvCorrection>> DeviceKvCorrection::Create(const KvCorrectionSpec& spec) {
  std::vector<uint32_t> words;  // in one run: one copy
  for (const absl::Span<const float> part : {spec.scale, spec.offset, spec.down, spec.up}) {
    for (const float value : part) words.push_back(std::bit_cast<uint32_t>(value));
  }
  if (HasTiles(spec)) {
    for (const std::vector<uint32_t>& tiles : {DownTiles(spec), UpTiles(spec)}) {
      words.insert(words.end(), tiles.begin(), tiles.end());
    }
  }
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(uint32_t));
  auto buffer = DeviceBuffer::Allocate("CreateKvCorrection", bytes);
  if (!buffer.ok()) return buffer.status();
  if (auto s = Upload((*buffer)->data(), words.data(), bytes); !s.ok()) return s;
  return std::unique_ptr<DeviceKvCorrection>(new DeviceKvCorrection(spec, *std::move(buffer)));
}

absl::StatusOr<const DeviceKvCorrection*> DeviceKvCorrection::From(const KvCorrection& correction) {
  return OfOwnKind<DeviceKvCorrection>(correction, "the KvCorrection was");
}

KvCorrectionView DeviceKvCorrection::view() const {
  const auto* scale = static_cast<const float*>(buffer_->data());
  const int64_t channels = 2 * cols_;
  const uint32_t *down_tiles = nullptr, *up_tiles = nullptr;
  if (has_tiles_) {
    // Aligned to 16 bytes: the arrays before have whole tiles of channels.
    down_tiles =
        reinterpret_cast<const uint32_t*>(scale + (1 + kNumKvCorrectionPlaces + 2 * rank_) * channels);
    up_tiles = down_tiles + channels / kTileChannels * kWarpSize * kTileWords;
  }
  return {.scale = scale,
          .offset = scale + channels,
          .down = scale + (1 + kNumKvCorrectionPlaces) * channels,
          .up = scale + (1 + kNumKvCorrectionPlaces + rank_) * channels,
          .down_tiles = down_tiles,
          .up_tiles = up_tiles,
          .cols = cols_,
          .rank = static_cast<int32_t>(rank_)};
}

absl::StatusOr<std::unique_ptr<DeviceBatchPlan>> DeviceBatchPlan::Create(const BatchSpec& spec,
                                                                         PlanMemoryPool& pool) {
  const size_t num_sequences = spec.kv_len.size();
  std::vector<int32_t> sequence_of_row(spec.positions.size());
  std::vector<int64_t> kv_offset(num_sequences + 1, 0);
  for (size_t s = 0; s < num_sequences; ++s) {
    kv_offset[s + 1] = kv_offset[s] + spec.kv_len[s];
    std::fill(sequence_of_row.begin() + spec.row_indptr[s], sequence_of_row.begin() + spec.row_indptr[s + 1],
              static_cast<int32_t>(s));
  }

  // All arrays behind each other, each at a multiple of 16 bytes: one copy.
  struct Array {
    const void* data;
    size_t bytes;
  };
  const auto array = [](const auto& values) {
    return Array{values.data(), values.size() * sizeof(values[0])};
  };
  const Array arrays[] = {array(spec.row_indptr),  array(spec.positions),    array(spec.kv_len),
                          array(spec.page_indptr), array(spec.page_indices), array(sequence_of_row),
                          array(kv_offset)};
  size_t offsets[std::size(arrays)], total = 0;
  for (size_t i = 0; i < std::size(arrays); ++i) {
    offsets[i] = total;
    total += static_cast<size_t>(RoundUp(static_cast<int64_t>(arrays[i].bytes), 16));
  }
  auto memory = pool.Take(static_cast<int64_t>(total));
  if (!memory.ok()) return memory.status();
  for (size_t i = 0; i < std::size(arrays); ++i) {
    if (arrays[i].bytes > 0) std::memcpy((*memory)->host() + offsets[i], arrays[i].data, arrays[i].bytes);
  }

  std::unique_ptr<DeviceBatchPlan> plan(new DeviceBatchPlan(pool, *std::move(memory)));
  plan->size_bytes_ = static_cast<int64_t>(total);
  plan->kv_len_.assign(spec.kv_len.begin(), spec.kv_len.end());
  for (size_t s = 0; s < num_sequences; ++s) {
    plan->rows_of_.push_back(spec.row_indptr[s + 1] - spec.row_indptr[s]);
    plan->max_kv_len_ = std::max(plan->max_kv_len_, spec.kv_len[s]);
  }
  plan->total_kv_len_ = kv_offset.back();
  for (const int32_t position : spec.positions)
    plan->max_position_ = std::max<int64_t>(plan->max_position_, position);
  for (const int32_t page : spec.page_indices)
    plan->max_page_index_ = std::max<int64_t>(plan->max_page_index_, page);
  const auto view_at = [&](const unsigned char* memory) {
    const auto ints = [&](int i) { return reinterpret_cast<const int32_t*>(memory + offsets[i]); };
    return PlanView{.row_indptr = ints(0),
                    .positions = ints(1),
                    .kv_len = ints(2),
                    .page_indptr = ints(3),
                    .page_indices = ints(4),
                    .sequence_of_row = ints(5),
                    .kv_offset = reinterpret_cast<const int64_t*>(memory + offsets[6]),
                    .num_sequences = static_cast<int32_t>(num_sequences),
                    .num_rows = static_cast<int32_t>(spec.positions.size()),
                    .page_size = FastDivisor::Of(spec.page_size)};
  };
  plan->view_ = view_at(plan->memory_->device());
  plan->host_view_ = view_at(plan->memory_->host());
  plan->page_list_size_ = static_cast<int64_t>(spec.page_indices.size()) / spec.num_page_lists;
  plan->num_page_lists_ = spec.num_page_lists;
  return plan;
}

absl::StatusOr<PlanView> DeviceBatchPlan::ViewOn(const DeviceStream& stream, int32_t page_list) const {
  if (const StepRecording* recording = stream.recording()) return recording->ViewOf(*this, page_list);
  if (absl::Status s = memory_->MakeReady(stream, size_bytes_); !s.ok()) return s;
  PlanView view = view_;
  view.page_indices += page_list * page_list_size_;
  return view;
}

absl::StatusOr<const DeviceBatchPlan*> DeviceBatchPlan::From(const BatchPlan& plan) {
  return OfOwnKind<DeviceBatchPlan>(plan, "the BatchPlan was");
}

bool DeviceBatchPlan::has_one_row_each() const {
  return std::all_of(rows_of_.begin(), rows_of_.end(), [](int32_t rows) { return rows == 1; });
}

int32_t DeviceBatchPlan::most_splits() const {
  const int64_t parts = CeilDiv(max_kv_len_, 2 * kKeyTile);
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(parts, 1))));
}

AttentionShape DeviceBatchPlan::ShapeOf(int32_t num_heads, const KvPagesView& pages, int num_multiprocessors,
                                        bool statistics) const {
  AttentionShape shape;
  shape.num_heads = num_heads;
  shape.group = num_heads / pages.num_kv_heads;
  shape.total_kv_len = total_kv_len_;
  const auto count_tiles = [&](int64_t rows_of_tile) {
    int64_t tiles = 0;
    for (const int32_t rows : rows_of_) tiles += CeilDiv(int64_t{rows} * shape.group, rows_of_tile);
    return tiles;
  };
  // Tall tiles where they are enough to keep every multiprocessor busy, and fewer: a sequence with no more
  // rows than the others hold is one tile of either kind.
  const int64_t others = count_tiles(kRowTile);
  const int64_t tall = count_tiles(kTallStrips * kRowTile);
  shape.is_tall = UsesTensorCores(pages) && !statistics && HasTallTiles(pages.head_dim) && tall < others &&
                  tall * pages.num_kv_heads >= 2 * num_multiprocessors;
  shape.row_tiles = shape.is_tall ? tall : others;
  for (const int32_t kv_len : kv_len_) shape.key_tiles += CeilDiv(kv_len, kKeyTile);
  // Few queries make few blocks: their keys are shared out until there are about two for each multiprocessor,
  // but a block keeps one or two tiles of keys at least. Where there is about one each already, rows are
  // gathered or of many answers and see very different numbers of keys: four each even that out.
  const int64_t blocks = std::max<int64_t>(shape.row_tiles * pages.num_kv_heads, 1);
  const bool is_uneven = 2 * blocks >= num_multiprocessors && blocks < 2 * num_multiprocessors;
  const int64_t wanted = CeilDiv(int64_t{is_uneven ? 4 : 2} * num_multiprocessors, blocks);
  if (UsesTensorCores(pages)) {
    shape.splits = static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, most_splits()));
  }
  return shape;
}

}  // namespace kvblend::kernels::cuda
