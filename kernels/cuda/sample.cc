#include "kernels/cuda/sample.h"

#include <cstring>
#include <vector>

#include "kernels/cuda/sampling.h"

namespace kvblend::kernels::cuda {

absl::Status SampleOnDevice(DeviceStream& stream, ConstMatrixView logits,
                            absl::Span<const SamplingSpec> specs, absl::Span<SampledToken> out) {
  std::vector<RowSampling> rows;
  std::vector<int32_t> penalised;
  int32_t penalised_rows = 0, weights_rows = 0;
  for (const SamplingSpec& spec : specs) {
    const auto begin = static_cast<int32_t>(penalised.size());
    penalised.insert(penalised.end(), spec.penalised.begin(), spec.penalised.end());
    rows.push_back({.temperature = spec.temperature,
                    .top_p = spec.top_p,
                    .min_p = spec.min_p,
                    .repetition_penalty = spec.repetition_penalty,
                    .uniform = spec.uniform,
                    .top_k = spec.top_k,
                    .num_top = spec.num_top,
                    .scored_token = spec.scored_token,
                    .penalised_begin = begin,
                    .penalised_end = static_cast<int32_t>(penalised.size()),
                    .penalised_row = spec.penalised.empty() ? -1 : penalised_rows++,
                    .weights_row = spec.temperature == 0 ? -1 : weights_rows++});
  }
  const auto row_bytes = static_cast<int64_t>(rows.size() * sizeof(RowSampling));
  const auto id_bytes = static_cast<int64_t>(penalised.size() * sizeof(int32_t));
  std::vector<unsigned char> staged(row_bytes + id_bytes);
  std::memcpy(staged.data(), rows.data(), row_bytes);
  if (id_bytes > 0) std::memcpy(staged.data() + row_bytes, penalised.data(), id_bytes);
  const auto arguments = stream.ScratchMemory(DeviceStream::Scratch::kIndices, row_bytes + id_bytes);
  if (!arguments.ok()) return arguments.status();
  auto* device_rows = static_cast<unsigned char*>(*arguments);
  if (auto s = EnqueueCopyFromHost(stream.handle(), device_rows, staged.data(), row_bytes + id_bytes);
      !s.ok()) {
    return s;
  }

  const auto out_bytes = static_cast<int64_t>(out.size() * sizeof(SampledToken));
  const int64_t weights_at = RoundUp(out_bytes, 16);
  const int64_t penalised_at = weights_at + weights_rows * logits.cols * int64_t{sizeof(uint64_t)};
  const auto workspace =
      stream.ScratchMemory(DeviceStream::Scratch::kWorkspace,
                           penalised_at + penalised_rows * logits.cols * static_cast<int64_t>(sizeof(float)));
  if (!workspace.ok()) return workspace.status();
  auto* memory = static_cast<unsigned char*>(*workspace);
  // Fields that nobody asked for are zeros.
  if (auto s = EnqueueZero(stream.handle(), memory, out_bytes); !s.ok()) return s;
  const SampleParams params{.logits = logits,
                            .rows = reinterpret_cast<const RowSampling*>(device_rows),
                            .penalised = reinterpret_cast<const int32_t*>(device_rows + row_bytes),
                            .penalised_logits = reinterpret_cast<float*>(memory + penalised_at),
                            .weights = reinterpret_cast<uint64_t*>(memory + weights_at),
                            .out = reinterpret_cast<SampledToken*>(memory)};
  if (auto s = StatusOf(LaunchSample(stream.handle(), params), "SampleTokens"); !s.ok()) return s;
  return EnqueueCopyToHost(stream.handle(), out.data(), memory, out_bytes);
}

}  // namespace kvblend::kernels::cuda
