#include "kernels/cuda/runtime/sample.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/runtime/step_recording.h"

namespace kvblend::kernels::cuda {
namespace {

// `rows`, `changes`: device memory. Scratch memory is laid out by whether any row draws or changes logits,
// not by which: a recorded step is repeated with others.
absl::Status Enqueue(DeviceStream& stream, ConstMatrixView logits, absl::Span<const SamplingSpec> specs,
                     const RowSampling* rows, const LogitChange* changes, SampledToken* out) {
  const auto count = static_cast<int64_t>(specs.size());
  const auto out_bytes = count * static_cast<int64_t>(sizeof(SampledToken));
  const int64_t weights_at = RoundUp(out_bytes, 16);
  const int64_t weights = AnyDraws(specs) ? count * logits.cols : 0;
  const int64_t changed_at = weights_at + weights * int64_t{sizeof(uint64_t)};
  const int64_t changed_logits = CountChanges(specs) > 0 ? count * logits.cols : 0;
  const auto workspace = stream.ScratchMemory(DeviceStream::Scratch::kWorkspace,
                                              changed_at + changed_logits * int64_t{sizeof(float)});
  if (!workspace.ok()) return workspace.status();
  auto* memory = static_cast<unsigned char*>(*workspace);
  // Fields that nobody asked for are zeros.
  if (auto s = EnqueueZero(stream.handle(), memory, out_bytes); !s.ok()) return s;
  const SampleParams params{.logits = logits,
                            .rows = rows,
                            .changes = changes,
                            .changed_logits = reinterpret_cast<float*>(memory + changed_at),
                            .weights = reinterpret_cast<uint64_t*>(memory + weights_at),
                            .out = reinterpret_cast<SampledToken*>(memory)};
  if (auto s = StatusOf(LaunchSample(stream.handle(), params), "SampleTokens"); !s.ok()) return s;
  return EnqueueCopyToHost(stream.handle(), out, memory, out_bytes);
}

}  // namespace

int64_t CountChanges(absl::Span<const SamplingSpec> specs) {
  int64_t count = 0;
  for (const SamplingSpec& spec : specs) count += static_cast<int64_t>(spec.changes.size());
  return count;
}

bool AnyDraws(absl::Span<const SamplingSpec> specs) {
  return std::any_of(specs.begin(), specs.end(),
                     [](const SamplingSpec& spec) { return spec.temperature != 0; });
}

void WriteSampling(absl::Span<const SamplingSpec> specs, RowSampling* rows, LogitChange* changes) {
  int32_t end = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const SamplingSpec& spec = specs[i];
    const int32_t begin = end;
    std::copy(spec.changes.begin(), spec.changes.end(), changes + begin);
    end += static_cast<int32_t>(spec.changes.size());
    const auto row = static_cast<int32_t>(i);
    rows[i] = {.temperature = spec.temperature,
               .top_p = spec.top_p,
               .min_p = spec.min_p,
               .repetition_penalty = spec.repetition_penalty,
               .uniform = spec.uniform,
               .top_k = spec.top_k,
               .num_top = spec.num_top,
               .scored_token = spec.scored_token,
               .changes_begin = begin,
               .changes_end = end,
               .changed_row = spec.changes.empty() ? -1 : row,
               .weights_row = spec.temperature == 0 ? -1 : row};
  }
}

absl::Status SampleOnDevice(DeviceStream& stream, ConstMatrixView logits,
                            absl::Span<const SamplingSpec> specs, absl::Span<SampledToken> out) {
  if (StepRecording* recording = stream.recording()) {
    const auto sampling = recording->SamplingOf(specs, out, logits.cols);
    if (!sampling.ok()) return sampling.status();
    return Enqueue(stream, logits, specs, sampling->rows, sampling->changes, sampling->out);
  }
  const auto row_bytes = static_cast<int64_t>(specs.size() * sizeof(RowSampling));
  const int64_t bytes = row_bytes + CountChanges(specs) * int64_t{sizeof(LogitChange)};
  std::vector<unsigned char> staged(bytes);
  WriteSampling(specs, reinterpret_cast<RowSampling*>(staged.data()),
                reinterpret_cast<LogitChange*>(staged.data() + row_bytes));
  const auto arguments = stream.ScratchMemory(DeviceStream::Scratch::kIndices, bytes);
  if (!arguments.ok()) return arguments.status();
  auto* rows = static_cast<unsigned char*>(*arguments);
  if (auto s = EnqueueCopyFromHost(stream.handle(), rows, staged.data(), bytes); !s.ok()) return s;
  return Enqueue(stream, logits, specs, reinterpret_cast<const RowSampling*>(rows),
                 reinterpret_cast<const LogitChange*>(rows + row_bytes), out.data());
}

}  // namespace kvblend::kernels::cuda
