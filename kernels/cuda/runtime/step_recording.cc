#include "kernels/cuda/runtime/step_recording.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cuda/runtime/sample.h"

namespace kvblend::kernels::cuda {
namespace {

// Below it, sizes do not tell shapes apart: 4 KB of indices cross the bus in no time.
constexpr int64_t kLeastSlots = 1024;

int64_t Slots(int64_t count) {
  return std::max(kLeastSlots, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))));
}

absl::Status NotTheSteps(absl::string_view op, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(op, ": the step is recorded with another ", what, " than it is run with"));
}

}  // namespace

std::optional<StepShape> StepShape::Of(const StepValues& values) {
  const auto plan = DeviceBatchPlan::From(values.plan);
  if (!plan.ok() || !(*plan)->has_one_row_each()) return std::nullopt;
  const auto rows = static_cast<size_t>((*plan)->num_rows());
  if (rows == 0 || values.token_ids.size() != rows || values.specs.size() != rows ||
      values.out.size() != rows) {
    return std::nullopt;
  }
  StepShape shape{.rows = static_cast<int32_t>(rows),
                  .most_splits = (*plan)->most_splits(),
                  .page_size = (*plan)->page_size(),
                  .page_lists = (*plan)->num_page_lists(),
                  .page_slots = Slots((*plan)->page_list_size())};
  const int64_t changes = CountChanges(values.specs);
  if (changes > 0) shape.change_slots = Slots(changes);
  shape.draws = AnyDraws(values.specs);
  return shape;
}

StepLayout::StepLayout(const StepShape& shape) {
  int64_t end = 0;
  const auto place = [&end](int64_t count, size_t size) {
    const int64_t begin = end;
    end += RoundUp(count * static_cast<int64_t>(size), 16);
    return begin;
  };
  const int64_t rows = shape.rows;
  token_ids = place(rows, sizeof(int32_t));
  row_indptr = place(rows + 1, sizeof(int32_t));
  positions = place(rows, sizeof(int32_t));
  kv_len = place(rows, sizeof(int32_t));
  page_indptr = place(rows + 1, sizeof(int32_t));
  sequence_of_row = place(rows, sizeof(int32_t));
  kv_offset = place(rows + 1, sizeof(int64_t));
  page_indices = place(shape.page_lists * shape.page_slots, sizeof(int32_t));
  sampling = place(rows, sizeof(RowSampling));
  changes = place(shape.change_slots, sizeof(LogitChange));
  input_bytes = end;
  out = place(rows, sizeof(SampledToken));
  total_bytes = end;
}

absl::StatusOr<std::unique_ptr<StepMemory>> StepMemory::Allocate(int64_t bytes) {
  auto device = DeviceBuffer::Allocate("a repeated step", bytes);
  if (!device.ok()) return device.status();
  std::unique_ptr<StepMemory> memory(new StepMemory(*std::move(device)));
  const auto host = PinnedAllocate(bytes);
  if (!host.ok()) return host.status();
  memory->host_ = static_cast<unsigned char*>(*host);
  std::memset(memory->host_, 0, static_cast<size_t>(bytes));  // the whole of it is copied, used or not
  return memory;
}

StepMemory::~StepMemory() {
  if (host_ != nullptr) PinnedFree(host_);
}

void StepMemory::Fill(const StepShape& shape, const StepValues& values) {
  const StepLayout layout(shape);
  const DeviceBatchPlan& plan = **DeviceBatchPlan::From(values.plan);
  const PlanView& view = plan.host_view();
  const auto copy = [this](int64_t offset, const auto* source, int64_t count) {
    std::memcpy(host_ + offset, source, static_cast<size_t>(count) * sizeof(*source));
  };
  const int64_t rows = shape.rows;
  copy(layout.token_ids, values.token_ids.data(), rows);
  copy(layout.row_indptr, view.row_indptr, rows + 1);
  copy(layout.positions, view.positions, rows);
  copy(layout.kv_len, view.kv_len, rows);
  copy(layout.page_indptr, view.page_indptr, rows + 1);
  copy(layout.sequence_of_row, view.sequence_of_row, rows);
  copy(layout.kv_offset, view.kv_offset, rows + 1);
  for (int64_t list = 0; list < shape.page_lists; ++list) {
    copy(layout.page_indices + list * shape.page_slots * static_cast<int64_t>(sizeof(int32_t)),
         view.page_indices + list * plan.page_list_size(), plan.page_list_size());
  }
  WriteSampling(values.specs, reinterpret_cast<RowSampling*>(host_ + layout.sampling),
                reinterpret_cast<LogitChange*>(host_ + layout.changes));
}

bool StepLimits::Allow(const StepValues& values) const {
  if (values.plan.max_position() >= positions || values.plan.max_page_index() >= pages) return false;
  for (const int32_t id : values.token_ids) {
    if (id < 0 || id >= token_ids) return false;
  }
  for (size_t i = 0; i < values.specs.size(); ++i) {
    if (!CheckSamplingSpec("SampleTokens", i, values.specs[i], vocab_size).ok()) return false;
  }
  return true;
}

absl::StatusOr<PlanView> StepRecording::ViewOf(const DeviceBatchPlan& plan, int32_t page_list) const {
  if (&plan != &values_.plan) return NotTheSteps("ViewOf", "plan");
  PlanView view = plan.host_view();
  view.row_indptr = OnDevice<int32_t>(layout_.row_indptr);
  view.positions = OnDevice<int32_t>(layout_.positions);
  view.kv_len = OnDevice<int32_t>(layout_.kv_len);
  view.page_indptr = OnDevice<int32_t>(layout_.page_indptr);
  view.page_indices = OnDevice<int32_t>(layout_.page_indices) + page_list * page_slots_;
  view.sequence_of_row = OnDevice<int32_t>(layout_.sequence_of_row);
  view.kv_offset = OnDevice<int64_t>(layout_.kv_offset);
  return view;
}

absl::StatusOr<const int32_t*> StepRecording::TokenIds(absl::Span<const int32_t> given, int64_t table_rows) {
  if (given.data() != values_.token_ids.data() || given.size() != values_.token_ids.size()) {
    return NotTheSteps("Embed", "list of tokens");
  }
  limits_.token_ids = std::min(limits_.token_ids, table_rows);
  return OnDevice<int32_t>(layout_.token_ids);
}

absl::StatusOr<StepRecording::Sampling> StepRecording::SamplingOf(absl::Span<const SamplingSpec> given,
                                                                  absl::Span<SampledToken> out,
                                                                  int64_t vocab_size) {
  if (given.data() != values_.specs.data() || given.size() != values_.specs.size() ||
      out.data() != values_.out.data() || limits_.vocab_size != 0) {
    return NotTheSteps("SampleTokens", "list of specs or tokens");
  }
  limits_.vocab_size = vocab_size;
  return Sampling{.rows = OnDevice<RowSampling>(layout_.sampling),
                  .changes = OnDevice<LogitChange>(layout_.changes),
                  .out = reinterpret_cast<SampledToken*>(memory_.host() + layout_.out)};
}

absl::Status CheckNotRecorded(const DeviceStream& stream, absl::string_view op, absl::string_view does) {
  if (stream.recording() == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(op, " ", does, ": a recorded step could not do it again"));
}

}  // namespace kvblend::kernels::cuda
