#include "engine/blend/fresh_rows.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace kvblend::blend {
namespace {

constexpr int32_t kFirstRows = 4;

/// Whether it stands where it will be computed for the store, so that nothing can differ.
bool StandsBehindItsAnchor(const prompt::PromptLayout& layout, const MissingEntry& entry) {
  return std::equal(layout.token_ids.begin(), layout.token_ids.begin() + entry.begin,
                    entry.anchor_ids.begin(), entry.anchor_ids.end());
}

bool IsComputed(const ReusePlan& plan, int32_t begin) {
  return std::any_of(plan.spans.begin(), plan.spans.end(), [&](const PlannedSpan& span) {
    return span.begin == begin && span.num_tokens() > 0 && span.source == ChunkSource::kMiss;
  });
}

double ShareOfFullPrefill(int32_t begin, absl::Span<const int32_t> recomputed, const Candidates& candidates) {
  int64_t reused = 0;
  for (const CandidateSpan& span : candidates.spans) {
    if (span.begin < begin) reused += span.end - span.begin;
  }
  reused -= std::lower_bound(recomputed.begin(), recomputed.end(), begin) - recomputed.begin();
  return 1 - static_cast<double>(reused) / begin;
}

}  // namespace

bool FreshRowBudget::Take(int64_t bytes) {
  if (!open_.load(std::memory_order_relaxed)) return false;
  int64_t left = left_.load(std::memory_order_relaxed);
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

std::vector<int32_t> SampleRows(int32_t num_tokens, int32_t max_rows) {
  const int32_t count = std::min(num_tokens, max_rows), first = std::min(count, kFirstRows);
  std::vector<int32_t> rows(count);
  for (int32_t i = 0; i < first; ++i) rows[i] = i;
  for (int32_t i = first; i < count; ++i) {
    rows[i] = first + static_cast<int32_t>(int64_t{i - first} * (num_tokens - first) / (count - first));
  }
  return rows;
}

// Without them the first tokens, whose KV is another matter than that of all others, would count many times over.
std::vector<float> RowWeights(int32_t num_tokens, int32_t num_rows) {
  const int32_t first = std::min(num_rows, kFirstRows), others = num_rows - first;
  const double mean = static_cast<double>(num_tokens) / num_rows;
  std::vector<float> weights(num_rows, static_cast<float>(1 / mean));
  for (int32_t i = first; i < num_rows; ++i) {
    weights[i] = static_cast<float>((num_tokens - first) / (others * mean));
  }
  return weights;
}

FreshRowCapture::FreshRowCapture(const FreshRowOptions& options, const prompt::PromptLayout& layout,
                                 const ReusePlan& plan, int32_t num_layers, int64_t channels,
                                 model::ScratchMatrix& device)
    : num_layers_(num_layers), channels_(channels), device_(device) {
  if (options.budget == nullptr) return;
  const int64_t row_bytes = num_layers * channels * static_cast<int64_t>(sizeof(float));
  const auto max_rows = static_cast<int32_t>(std::clamp<int64_t>(kMaxChunkBytes / row_bytes, 1, kMaxRows));
  for (size_t i = 0; i < plan.missing.size(); ++i) {
    const MissingEntry& entry = plan.missing[i];
    if (entry.begin <= 0 || !IsComputed(plan, entry.begin) || StandsBehindItsAnchor(layout, entry)) continue;
    const auto num_tokens = static_cast<int32_t>(entry.token_ids.size());
    std::vector<int32_t> rows = SampleRows(num_tokens, max_rows);
    const int64_t bytes = row_bytes * static_cast<int64_t>(rows.size());
    if (!options.budget->Take(bytes)) break;
    for (const int32_t row : rows) rows_.push_back(entry.begin + row);
    std::vector<float> weights = RowWeights(num_tokens, static_cast<int32_t>(rows.size()));
    chunks_.push_back({i, entry.begin, std::make_shared<FreshRows>(std::move(rows), bytes, options.budget)});
    chunks_.back().fresh->row_weights = std::move(weights);
  }
}

absl::Status FreshRowCapture::Keep(kernels::Backend& backend, kernels::Stream& stream, int32_t layer,
                                   absl::Span<const int32_t> active, kernels::ConstMatrixView kv) {
  if (empty()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(rows_.size());
  if (layer == 0) {
    KVBLEND_ASSIGN_OR_RETURN(
        kept_, device_.Resize(backend, num_layers_ * count, channels_, kernels::DataType::kF32));
  }
  std::vector<int32_t> indices;
  indices.reserve(rows_.size());
  const int32_t* from = active.begin();
  for (const int32_t position : rows_) {
    from = std::lower_bound(from, active.end(), position);
    indices.push_back(static_cast<int32_t>(from - active.begin()));
  }
  return backend.GatherRows(stream, kv, indices, kept_.Rows(layer * count, count));
}

absl::Status FreshRowCapture::Download(kernels::Backend& backend, kernels::Stream& stream) {
  if (empty()) return absl::OkStatus();
  host_.resize(kept_.rows * kept_.cols);
  return backend.CopyToHost(stream, host_.data(), kept_.data,
                            static_cast<int64_t>(host_.size() * sizeof(float)));
}

void FreshRowCapture::Finish(absl::Span<const int32_t> recomputed, ReusePlan& plan) {
  const auto layer_values = static_cast<int64_t>(rows_.size()) * channels_;
  int64_t before = 0;  // values of chunks that came first
  for (Chunk& chunk : chunks_) {
    FreshRows& fresh = *chunk.fresh;
    const auto values = static_cast<int64_t>(fresh.rows.size()) * channels_;
    fresh.weight = ShareOfFullPrefill(chunk.begin, recomputed, plan.candidates);
    fresh.values.reserve(num_layers_ * values);
    for (int32_t layer = 0; layer < num_layers_; ++layer) {
      const auto first = host_.begin() + layer * layer_values + before;
      fresh.values.insert(fresh.values.end(), first, first + values);
    }
    before += values;
    plan.missing[chunk.missing].fresh = std::move(chunk.fresh);
  }
}

}  // namespace kvblend::blend
