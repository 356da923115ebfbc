#include "engine/blend/fresh_rows.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/kv/pair_moments.h"

namespace kvblend::blend {
namespace {

constexpr int32_t kFirstRows = 4;

/// Whether the chunk has the same tokens before it here as in the store, so that its KV cannot differ.
bool StandsBehindItsAnchor(const prompt::PromptLayout& layout, const MissingEntry& entry) {
  return std::equal(layout.token_ids.begin(), layout.token_ids.begin() + entry.begin,
                    entry.anchor_ids.begin(), entry.anchor_ids.end());
}

bool IsComputed(const ReusePlan& plan, int32_t begin) {
  return std::any_of(plan.spans.begin(), plan.spans.end(), [&](const PlannedSpan& span) {
    return span.begin == begin && span.num_tokens() > 0 && span.source == ChunkSource::kMiss;
  });
}

/// Where the first chunk begins, or the question if there is no chunk.
int32_t ChunksBegin(const prompt::PromptLayout& layout) {
  const auto first = std::find_if(layout.spans.begin(), layout.spans.end(), [](const prompt::Span& span) {
    return span.kind == prompt::SpanKind::kChunk;
  });
  return first == layout.spans.end() ? layout.spans.back().begin : first->begin;
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

// All first tokens are sampled, and their KV is unlike other KV: equal weights would count them too often.
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
                                 FreshRowMemory& device)
    : num_layers_(num_layers),
      channels_(channels),
      chunks_begin_(ChunksBegin(layout)),
      question_begin_(plan.spans.back().begin),
      num_tokens_(plan.prompt_tokens),
      device_(device),
      has_mass_(num_layers, false) {
  if (options.budget == nullptr) return;
  const uint64_t generation = options.budget->generation();  // before anything is taken
  const int64_t row_bytes = num_layers * channels * static_cast<int64_t>(sizeof(float));
  const auto max_rows = static_cast<int32_t>(std::clamp<int64_t>(kMaxChunkBytes / row_bytes, 1, kMaxRows));
  for (size_t i = 0; i < plan.missing.size(); ++i) {
    const MissingEntry& entry = plan.missing[i];
    if (entry.begin <= 0 || !IsComputed(plan, entry.begin) || StandsBehindItsAnchor(layout, entry)) continue;
    const auto num_tokens = static_cast<int32_t>(entry.token_ids.size());
    std::vector<int32_t> rows = SampleRows(num_tokens, max_rows);
    const int64_t bytes = row_bytes * static_cast<int64_t>(rows.size());
    if (!options.budget->Take(bytes)) break;
    std::vector<float> stands_for = RowWeights(num_tokens, static_cast<int32_t>(rows.size()));
    const int64_t first_row = num_rows_;
    num_rows_ += num_layers * static_cast<int64_t>(rows.size());
    chunks_.push_back({i, entry.begin, std::move(stands_for), first_row,
                       std::make_shared<FreshRows>(std::move(rows), (num_rows_ - first_row) * channels,
                                                   options.budget, generation)});
  }
}

kernels::MatrixView FreshRowCapture::RowsOf(const Chunk& chunk, int32_t layer, int32_t num_layers) const {
  const auto rows = static_cast<int64_t>(chunk.fresh->rows.size());
  return kept_.Rows(chunk.first_row + layer * rows, num_layers * rows);
}

absl::Status FreshRowCapture::Keep(kernels::Backend& backend, kernels::Stream& stream, int32_t layer,
                                   absl::Span<const int32_t> active, kernels::ConstMatrixView kv) {
  if (empty()) return absl::OkStatus();
  if (layer == 0) {
    KVBLEND_ASSIGN_OR_RETURN(kept_,
                             device_.rows.Resize(backend, num_rows_, channels_, kernels::DataType::kF32));
  }
  for (const Chunk& chunk : chunks_) {
    // All of the chunk is active, so its rows follow one another.
    const auto first =
        static_cast<int32_t>(std::lower_bound(active.begin(), active.end(), chunk.begin) - active.begin());
    std::vector<int32_t> indices = chunk.fresh->rows;
    for (int32_t& index : indices) index += first;
    KVBLEND_RETURN_IF_ERROR(backend.GatherRows(stream, kv, indices, RowsOf(chunk, layer, 1)));
  }
  return absl::OkStatus();
}

absl::Status FreshRowCapture::KeepMass(const model::Transformer& transformer, kernels::Stream& stream,
                                       int32_t layer, const PagedSequence& sequence,
                                       const model::PassState& state) {
  if (empty()) return absl::OkStatus();
  kernels::Backend& backend = transformer.backend();
  if (question_ == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(question_, sequence.PlanRange(question_begin_, num_tokens_, num_tokens_));
    KVBLEND_ASSIGN_OR_RETURN(mass_,
                             device_.mass.Resize(backend, num_layers_, num_tokens_, kernels::DataType::kF32));
  }
  const kernels::MatrixView queries = transformer.Queries(state);
  const int64_t rows = num_tokens_ - question_begin_;  // the question's, which is at the end
  has_mass_[layer] = true;
  return backend.AttentionMass(stream, *question_, queries.Rows(queries.rows - rows, rows),
                               transformer.attention(layer), sequence.Layer(layer), mass_.Rows(layer, 1));
}

absl::Status FreshRowCapture::Download(kernels::Backend& backend, kernels::Stream& stream) {
  for (const Chunk& chunk : chunks_) {
    KVBLEND_RETURN_IF_ERROR(backend.CopyToHost(stream, chunk.fresh->data(),
                                               RowsOf(chunk, 0, num_layers_).data, chunk.fresh->num_bytes()));
  }
  if (question_ == nullptr) return absl::OkStatus();
  host_mass_.resize(mass_.rows * mass_.cols);
  return backend.CopyToHost(stream, host_mass_.data(), mass_.data,
                            static_cast<int64_t>(host_mass_.size() * sizeof(float)));
}

std::vector<float> FreshRowCapture::MassWeights(int32_t layer) const {
  while (layer >= 0 && !has_mass_[layer]) --layer;
  const int64_t count = question_begin_ - chunks_begin_;
  if (layer < 0) return std::vector<float>(count, 1.0f);
  return kv::WeightsOfMass(
      absl::MakeConstSpan(host_mass_).subspan(int64_t{layer} * num_tokens_ + chunks_begin_, count));
}

void FreshRowCapture::Finish(absl::Span<const int32_t> recomputed, ReusePlan& plan) {
  if (empty()) return;
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    const std::vector<float> attention = MassWeights(layer);
    for (const Chunk& chunk : chunks_) {
      FreshRows& fresh = *chunk.fresh;
      for (size_t i = 0; i < fresh.rows.size(); ++i) {
        const float paid = attention[chunk.begin + fresh.rows[i] - chunks_begin_];
        fresh.row_weights.push_back(chunk.stands_for[i] * paid);
      }
    }
  }
  for (Chunk& chunk : chunks_) {
    chunk.fresh->weight = ShareOfFullPrefill(chunk.begin, recomputed, plan.candidates);
    plan.missing[chunk.missing].fresh = std::move(chunk.fresh);
  }
  chunks_.clear();
}

}  // namespace kvblend::blend
