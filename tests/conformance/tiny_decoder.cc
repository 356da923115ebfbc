#include "tests/conformance/tiny_decoder.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/status_macros.h"

namespace kvblend::kernels {

TinyDecoder::TinyDecoder(Backend& backend, int32_t num_sequences, DataType pages)
    : backend_(backend),
      stream_(backend.CreateStream().value()),
      lengths_(num_sequences, 0),
      k_(backend, pages, int64_t{num_sequences} * kMaxContext * kKvHeads, kHeadDim),
      v_(backend, pages, int64_t{num_sequences} * kMaxContext * kKvHeads, kHeadDim),
      norm_(backend, kF32, 1, kDim),
      hidden_(backend, kF32, kMostRows, kDim),
      normed_(backend, backend.compute_dtype(), kMostRows, kDim),
      qkv_(backend, kF32, kMostRows, (kHeads + 2 * kKvHeads) * kHeadDim),
      attention_(backend, backend.compute_dtype(), kMostRows, kHeads * kHeadDim),
      logits_(backend, kF32, kMostRows, kVocab),
      rope_(MakeRope(backend, RopeLayout::kInterleaved, kHeadDim, kMaxPosition)) {
  k_.Randomize(rng_);
  v_.Randomize(rng_);
  norm_.Randomize(rng_);
  const auto pack = [&](int64_t rows, int64_t cols, WeightUsage usage) {
    Tensor values(backend, kF32, rows, cols);
    values.Randomize(rng_, 0.3);
    return Pack(backend, values, usage);
  };
  embedding_ = pack(kVocab, kDim, WeightUsage::kLinearAndEmbedding);
  projection_ = pack(qkv_.cols(), kDim, WeightUsage::kLinear);
  output_ = pack(kDim, kHeads * kHeadDim, WeightUsage::kLinear);
  std::vector<int32_t> pages_in_order(num_sequences * kPagesPerSequence);
  std::iota(pages_in_order.begin(), pages_in_order.end(), 0);
  std::shuffle(pages_in_order.begin(), pages_in_order.end(), rng_);
  for (int32_t s = 0; s < num_sequences; ++s) {
    const auto begin = pages_in_order.begin() + s * kPagesPerSequence;
    pages_of_.emplace_back(begin, begin + kPagesPerSequence);
  }
}

absl::StatusOr<std::vector<SampledToken>> TinyDecoder::Run(RepeatedStep* step,
                                                           const std::vector<Next>& next) {
  std::vector<SampledToken> out(next.size());
  KVBLEND_RETURN_IF_ERROR(Enqueue(step, next, absl::MakeSpan(out)));
  KVBLEND_RETURN_IF_ERROR(backend_.Synchronize(*stream_));
  return out;
}

// Everything on the host is gone when this returns: neither a recording nor a repetition may need it later.
absl::Status TinyDecoder::Enqueue(RepeatedStep* step, const std::vector<Next>& next,
                                  absl::Span<SampledToken> out) {
  // The second of two lists is the decoder's.
  std::vector<int32_t> tokens, row_indptr{0}, positions, kv_len, page_indptr{0}, owned;
  std::vector<SamplingSpec> specs;
  for (const Next& row : next) {
    tokens.push_back(row.token);
    specs.push_back(row.spec);
    positions.push_back(lengths_[row.sequence]++);
    kv_len.push_back(lengths_[row.sequence]);
    row_indptr.push_back(static_cast<int32_t>(tokens.size()));
    const auto& pages = pages_of_[row.sequence];
    owned.insert(owned.end(), pages.begin(), pages.begin() + 1 + positions.back() / kPageSize);
    page_indptr.push_back(static_cast<int32_t>(owned.size()));
  }
  std::vector<int32_t> page_indices(owned.size(), 0);
  page_indices.insert(page_indices.end(), owned.begin(), owned.end());
  KVBLEND_ASSIGN_OR_RETURN(const auto plan,
                           backend_.PlanBatch({row_indptr, positions, kv_len, page_indptr, page_indices,
                                               kPageSize, /*num_page_lists=*/2}));
  const StepValues values{*plan, tokens, specs, out};
  if (step == nullptr) return Operations(values);
  return step->Run(values, [&] { return Operations(values); });
}

absl::Status TinyDecoder::Operations(const StepValues& values) {
  constexpr int64_t kQueries = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim;
  constexpr float kEpsilon = 1e-5f;
  const int64_t rows = values.plan.num_rows();
  const auto first = [rows](Tensor& tensor) { return tensor.view().Rows(0, rows); };
  const MatrixView hidden = first(hidden_), normed = first(normed_), qkv = first(qkv_),
                   attention = first(attention_), logits = first(logits_);
  const KvPagesView pages{.k = k_.view().data,
                          .v = v_.view().data,
                          .dtype = k_.view().dtype,
                          .num_pages = static_cast<int64_t>(lengths_.size()) * kPagesPerSequence,
                          .num_kv_heads = kKvHeads,
                          .page_size = kPageSize,
                          .head_dim = kHeadDim,
                          .page_list = 1};
  KVBLEND_RETURN_IF_ERROR(backend_.Embed(*stream_, *embedding_, values.token_ids, 1.0f, hidden));
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(*stream_, hidden, norm_.view(), kEpsilon, normed));
  KVBLEND_RETURN_IF_ERROR(backend_.Linear(*stream_, normed, *projection_, /*accumulate=*/false, qkv));
  KVBLEND_RETURN_IF_ERROR(backend_.KvScatter(*stream_, values.plan, *rope_, qkv.Columns(kQueries, kKv),
                                             qkv.Columns(kQueries + kKv, kKv), pages));
  KVBLEND_RETURN_IF_ERROR(backend_.Rope(*stream_, values.plan, *rope_, kHeads, qkv.Columns(0, kQueries)));
  if (extra_) KVBLEND_RETURN_IF_ERROR(extra_());
  KVBLEND_RETURN_IF_ERROR(backend_.SelectiveAttention(*stream_, values.plan, qkv.Columns(0, kQueries),
                                                      {.num_heads = kHeads, .scale = 0.25f}, pages,
                                                      attention));
  KVBLEND_RETURN_IF_ERROR(backend_.Linear(*stream_, attention, *output_, /*accumulate=*/true, hidden));
  KVBLEND_RETURN_IF_ERROR(backend_.RmsNorm(*stream_, hidden, norm_.view(), kEpsilon, normed));
  KVBLEND_RETURN_IF_ERROR(backend_.Linear(*stream_, normed, *embedding_, /*accumulate=*/false, logits));
  return backend_.SampleTokens(*stream_, logits, values.specs, values.out);
}

std::vector<std::byte> TinyDecoder::Kv() {
  std::vector<std::byte> all = k_.Bytes();
  const std::vector<std::byte> v = v_.Bytes();
  all.insert(all.end(), v.begin(), v.end());
  return all;
}

void ExpectSameTokens(const std::vector<SampledToken>& actual, const std::vector<SampledToken>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    ExpectSameToken(actual[i], expected[i]);
  }
}

SamplingSpec RandomSpec(Rng& rng, const std::vector<LogitChange>& changes) {
  SamplingSpec spec;
  if (rng() % 2 == 0) {
    spec.temperature = 0.7;
    spec.top_p = rng() % 2 == 0 ? 0.9 : 1.0;
    spec.top_k = rng() % 2 == 0 ? 40 : 0;
    spec.uniform = static_cast<double>(rng() % 1000) / 1000;
  }
  if (rng() % 4 == 0) {
    spec.repetition_penalty = 1.3;
    spec.changes = changes;
  }
  if (rng() % 3 == 0) spec.num_top = static_cast<int32_t>(rng() % 6);
  if (rng() % 3 == 0) spec.scored_token = static_cast<int32_t>(rng() % TinyDecoder::kVocab);
  return spec;
}

}  // namespace kvblend::kernels
