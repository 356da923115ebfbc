#include "engine/serve/sequences/attribution/copy_layers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace kvblend {
namespace {

constexpr int32_t kRepeatedTokens = 64;

/// A first token, which takes the attention that goes nowhere, and then `count` random ones twice.
std::vector<int32_t> RepeatedTokens(const ModelRuntime& runtime, int32_t count) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens;
  // Special tokens are avoided, unless the vocabulary seems to have nothing else.
  for (int32_t tries = 0; static_cast<int32_t>(tokens.size()) <= count; ++tries) {
    const auto token = static_cast<int32_t>(random() % static_cast<uint32_t>(runtime.config.vocab_size));
    if (runtime.tokenizer->IsSpecial(token) && tries < 100 * count) continue;
    tokens.push_back(token);
  }
  tokens.insert(tokens.end(), tokens.begin() + 1, tokens.begin() + 1 + count);
  return tokens;
}

/// One sequence of the rows up to the end of the first time, and one of its own for each row behind it, over
/// the same pages, so that their attention is told apart.
absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PlanRepeated(kernels::Backend& backend, int32_t count,
                                                                 absl::Span<const int32_t> pages,
                                                                 int32_t page_size) {
  std::vector<int32_t> positions(2 * count + 1);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> row_indptr = {0}, kv_len, page_indptr = {0}, page_indices;
  for (int32_t end = count + 1; end <= 2 * count + 1; ++end) {
    row_indptr.push_back(end);
    kv_len.push_back(end);
    page_indices.insert(page_indices.end(), pages.begin(), pages.end());
    page_indptr.push_back(static_cast<int32_t>(page_indices.size()));
  }
  kernels::BatchSpec spec;
  spec.row_indptr = row_indptr;
  spec.positions = positions;
  spec.kv_len = kv_len;
  spec.page_indptr = page_indptr;
  spec.page_indices = page_indices;
  spec.page_size = page_size;
  return backend.PlanBatch(spec);
}

/// How much each repeated token attends to what followed upon it the first time, on average. The last one is
/// left out: what follows upon it is the second time. `mass`: as AttentionMass gives it for PlanRepeated.
float Strength(absl::Span<const float> mass, int32_t count) {
  double sum = 0;
  int64_t offset = count + 1;  // of the first sequence
  for (int32_t i = 0; i + 1 < count; ++i) {
    sum += mass[offset + 2 + i];
    offset += count + 2 + i;
  }
  return std::isfinite(sum) ? static_cast<float>(sum / (count - 1)) : 0;  // damaged weights give NaN
}

}  // namespace

absl::StatusOr<std::unique_ptr<CopyLayerSearch>> CopyLayerSearch::Create(ModelRuntime& runtime) {
  const int32_t count = std::min(kRepeatedTokens, (runtime.max_context_tokens - 1) / 2);
  if (count < 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("attribution: a context of ", runtime.max_context_tokens,
                     " tokens is too short to find what answers attend to; allowed: 5 or more"));
  }
  std::unique_ptr<CopyLayerSearch> search(new CopyLayerSearch(runtime));
  search->count_ = count;
  kernels::Backend& backend = *runtime.backend;
  const int32_t page_size = runtime.page_pool->page_size();
  const int64_t num_pages = runtime.page_pool->PagesForTokens(2 * count + 1);
  KVBLEND_ASSIGN_OR_RETURN(search->pool_,
                           kv::PagePool::Create(backend, {.num_layers = 1,
                                                          .num_kv_heads = runtime.config.num_kv_heads,
                                                          .head_dim = runtime.config.head_dim,
                                                          .page_size = page_size,
                                                          .num_pages = static_cast<int32_t>(num_pages),
                                                          .dtype = runtime.page_pool->dtype()}));
  std::vector<int32_t> page_indices(num_pages);
  std::iota(page_indices.begin(), page_indices.end(), 0);
  KVBLEND_ASSIGN_OR_RETURN(search->rows_, PlanRepeated(backend, count, page_indices, page_size));
  const int64_t columns = search->rows_->total_kv_len();
  KVBLEND_ASSIGN_OR_RETURN(search->mass_,
                           search->memory_.Resize(backend, 1, columns, kernels::DataType::kF32));
  search->measured_.resize(columns);
  KVBLEND_RETURN_IF_ERROR(
      runtime.transformer->Begin(*runtime.stream, RepeatedTokens(runtime, count), search->state_));
  return search;
}

absl::StatusOr<bool> CopyLayerSearch::Step() {
  const auto layer = static_cast<int32_t>(strengths_.size());
  const model::Transformer& transformer = *runtime_.transformer;
  kernels::Stream& stream = *runtime_.stream;
  const kernels::KvPagesView pages = pool_->Layer(0);
  KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, layer, state_));
  KVBLEND_RETURN_IF_ERROR(transformer.WriteKv(stream, layer, *rows_, state_, pages));
  KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, layer, *rows_, state_));
  KVBLEND_RETURN_IF_ERROR(transformer.AttendAndMlp(stream, layer, *rows_, pages, state_, mass_));
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->CopyToHost(
      stream, measured_.data(), mass_.data, static_cast<int64_t>(measured_.size() * sizeof(float))));
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(stream));
  strengths_.push_back(Strength(measured_, count_));
  return layer + 1 == runtime_.config.num_layers;
}

CopyLayers CopyLayerSearch::Found() const {
  const std::vector<model::LayerConfig>& layers = runtime_.config.layers;
  const bool all_have_windows =
      std::all_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.sliding_window > 0; });
  CopyLayers found;
  for (int32_t layer = 0; layer < runtime_.config.num_layers; ++layer) {
    if (all_have_windows || layers[layer].sliding_window == 0) found.layers.push_back(layer);
  }
  std::stable_sort(found.layers.begin(), found.layers.end(),
                   [this](int32_t a, int32_t b) { return strengths_[a] > strengths_[b]; });
  const float best = strengths_[found.layers[0]];
  double sum = 0;
  int32_t taken = 0;
  for (const int32_t layer : found.layers) {
    if (taken == kMaxCopyLayers || (taken > 0 && !(strengths_[layer] >= best / 2))) break;
    sum += strengths_[layer];
    ++taken;
  }
  found.layers.resize(taken);
  std::sort(found.layers.begin(), found.layers.end());
  found.strength = std::max(static_cast<float>(sum / taken), std::numeric_limits<float>::min());
  return found;
}

}  // namespace kvblend
