#include "engine/serve/sequences/attribution/answer_attention.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvblend {

absl::StatusOr<bool> AnswerAttention::Prepare(RequestTrace* trace) {
  if (!found_.layers.empty()) return true;
  const TracedUnit traced(trace, "find attention");
  if (search_ == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(search_, CopyLayerSearch::Create(runtime_));
  }
  const absl::StatusOr<bool> done = search_->Step();
  if (done.ok() && *done) found_ = search_->Found();
  if (!done.ok() || *done) search_ = nullptr;  // the next call begins anew
  return done;
}

absl::Status AnswerAttention::Begin(const kernels::BatchPlan& rows) {
  KVBLEND_ASSIGN_OR_RETURN(mass_,
                           memory_.Resize(*runtime_.backend, static_cast<int64_t>(found_.layers.size()),
                                          rows.total_kv_len(), kernels::DataType::kF32));
  return absl::OkStatus();
}

std::optional<kernels::MatrixView> AnswerAttention::MassOf(int32_t layer) const {
  const auto found = std::find(found_.layers.begin(), found_.layers.end(), layer);
  if (found == found_.layers.end()) return std::nullopt;
  return mass_.Rows(found - found_.layers.begin(), 1);
}

absl::Status AnswerAttention::Fetch() {
  on_host_.resize(mass_.rows * mass_.cols);
  return runtime_.backend->CopyToHost(*runtime_.stream, on_host_.data(), mass_.data,
                                      static_cast<int64_t>(on_host_.size() * sizeof(float)));
}

std::vector<ChunkAttention> AnswerAttention::Read(int64_t kv_offset,
                                                  absl::Span<const prompt::Span> chunks) const {
  const auto at = [&](size_t layer, int32_t position) {
    return on_host_[static_cast<int64_t>(layer) * mass_.cols + kv_offset + position];
  };
  std::vector<ChunkAttention> attended;
  for (const prompt::Span& chunk : chunks) {
    float most = 0;
    for (int32_t position = chunk.begin; position < chunk.end; ++position) {
      float sum = 0;
      for (size_t layer = 0; layer < found_.layers.size(); ++layer) sum += at(layer, position);
      most = std::max(most, sum);  // a NaN is no more than anything
    }
    const float share = most / (static_cast<float>(found_.layers.size()) * found_.strength);
    if (share > 0) attended.push_back({.index = chunk.chunk_index, .attention = std::min(share, 1.0f)});
  }
  const size_t count = std::min(attended.size(), kMaxAttributedChunks);
  std::partial_sort(attended.begin(), attended.begin() + static_cast<int64_t>(count), attended.end(),
                    [](const ChunkAttention& a, const ChunkAttention& b) {
                      return a.attention != b.attention ? a.attention > b.attention : a.index < b.index;
                    });
  attended.resize(count);
  return attended;
}

}  // namespace kvblend
