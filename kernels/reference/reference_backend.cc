// The definition of every operation: plain fp32 loops over one element at a time, single-threaded. Nothing
// here is fast; everything is meant to be read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/checks.h"
#include "kernels/host/batch_plan.h"
#include "kernels/host/float_convert.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/kv_codec.h"
#include "kernels/host/page_codec.h"
#include "kernels/host/sample_row.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/encode_section.h"
#include "kernels/reference/experts.h"
#include "kernels/reference/rotation.h"
#include "kernels/reference/spread_deviation.h"

namespace kvblend::kernels {
namespace {

using reference::Get;
using reference::RotateHead;
using reference::Set;

class ReferenceWeights final : public PackedWeights {
 public:
  ReferenceWeights(int64_t rows, int64_t cols, WeightUsage usage)
      : rows_(rows), cols_(cols), usage_(usage), values_(rows * cols) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightUsage usage() const override { return usage_; }
  absl::Span<float> row(int64_t index) { return absl::MakeSpan(values_).subspan(index * cols_, cols_); }
  const float* row(int64_t index) const { return values_.data() + index * cols_; }

 private:
  const int64_t rows_, cols_;
  const WeightUsage usage_;
  std::vector<float> values_;
};

class ReferenceKvCorrection final : public KvCorrection {
 public:
  explicit ReferenceKvCorrection(const KvCorrectionSpec& spec)
      : cols_(spec.cols),
        rank_(spec.rank),
        scale_(spec.scale.begin(), spec.scale.end()),
        offset_(spec.offset.begin(), spec.offset.end()),
        down_(spec.down.begin(), spec.down.end()),
        up_(spec.up.begin(), spec.up.end()) {}
  int64_t cols() const override { return cols_; }

  /// x: K and V of the chunk's token number `token`, one behind the other
  std::vector<float> Apply(int64_t token, const std::vector<float>& x) const {
    const int64_t channels = 2 * cols_;
    const float* offset = offset_.data() + KvCorrectionPlace(token) * channels;
    std::vector<float> y(channels), inner(rank_, 0.0f);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t r = 0; r < rank_; ++r) inner[r] += x[c] * down_[c * rank_ + r];
    }
    for (int64_t c = 0; c < channels; ++c) {
      y[c] = scale_[c] * x[c] + offset[c];
      for (int64_t r = 0; r < rank_; ++r) y[c] += inner[r] * up_[r * channels + c];
    }
    return y;
  }

 private:
  const int64_t cols_, rank_;
  const std::vector<float> scale_, offset_, down_, up_;
};

float SoftCapped(float x, float cap) { return cap * std::tanh(x / cap); }

// The softmax over the keys that `row` sees, for one query head: probabilities of keys [first, first + size).
std::vector<float> AttentionRow(const HostBatchPlan& plan, int64_t row, ConstMatrixView q, int64_t head,
                                int32_t kv_head, const AttentionSpec& spec, const KvPagesView& pages,
                                int32_t* first) {
  const int32_t sequence = plan.sequence_of_row(row), position = plan.position(row);
  *first = spec.FirstVisible(position);
  const PageValues keys = PageValues::Keys(pages);
  std::vector<float> probabilities(position + 1 - *first);
  float max = -std::numeric_limits<float>::infinity();
  for (int32_t key = *first; key <= position; ++key) {
    const int64_t slot = plan.Slot(pages, sequence, kv_head, key);
    float dot = 0;
    for (int32_t d = 0; d < pages.head_dim; ++d) {
      dot += Get(q, row, head * pages.head_dim + d) * keys.Load(slot, d);
    }
    float score = dot * spec.scale;
    if (spec.logit_soft_cap != 0) score = SoftCapped(score, spec.logit_soft_cap);
    probabilities[key - *first] = score;
    max = std::max(max, score);
  }
  float sum = 0;
  if (spec.sinks.data != nullptr) {
    const float sink = Get(spec.sinks, 0, head);
    max = std::max(max, sink);
    sum = std::exp(sink - max);
  }
  for (float& p : probabilities) sum += p = std::exp(p - max);
  for (float& p : probabilities) p /= sum;
  return probabilities;
}

// 2 u of Activation::kGeluTanh.
float GeluExponent(float z) {
  return 2.0f * std::sqrt(2.0f / std::numbers::pi_v<float>) * (z + 0.044715f * z * z * z);
}

float Gated(Activation activation, float z, float up) {
  if (activation == Activation::kClampedSilu) {
    z = std::min(z, kClampedSiluLimit);
    up = std::clamp(up, -kClampedSiluLimit, kClampedSiluLimit) + 1.0f;
    return z / (1.0f + std::exp(-kClampedSiluSharpness * z)) * up;
  }
  const float exponent = activation == Activation::kSilu ? z : GeluExponent(z);
  return z / (1.0f + std::exp(-exponent)) * up;
}

class ReferenceBackend final : public HostBackend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string Describe() const override { return "reference: plain fp32 loops, 1 thread"; }
  DataType compute_dtype() const override { return DataType::kF32; }
  bool has_int8_pages() const override { return true; }
  PageLayout best_page_layout(DataType dtype, int32_t page_size, int32_t head_dim) const override {
    return KvPagesView::HasTiles(dtype, page_size, head_dim) ? PageLayout::kTiles : PageLayout::kRows;
  }

 protected:
  absl::StatusOr<std::unique_ptr<PackedWeights>> DoPackWeights(int64_t rows, int64_t cols, WeightUsage usage,
                                                               const WeightSource& source) override {
    auto weights = std::make_unique<ReferenceWeights>(rows, cols, usage);
    for (int64_t r = 0; r < rows; ++r) {
      if (absl::Status status = source.ReadRow(r, weights->row(r)); !status.ok()) return status;
    }
    return weights;
  }

  absl::Status DoEmbed(Stream&, const PackedWeights& table, absl::Span<const int32_t> token_ids, float scale,
                       MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights,
                             OfOwnKind<ReferenceWeights>(table, "the PackedWeights were"));
    for (int64_t i = 0; i < out.rows; ++i) {
      const float* row = weights->row(token_ids[i]);
      for (int64_t c = 0; c < out.cols; ++c) Set(out, i, c, scale * row[c]);
    }
    return absl::OkStatus();
  }

  absl::Status DoRmsNorm(Stream&, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                         MatrixView out) override {
    const int64_t run = weight.cols;
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t begin = 0; begin < x.cols; begin += run) {
        float sum = 0;
        for (int64_t c = 0; c < run; ++c) sum += Get(x, i, begin + c) * Get(x, i, begin + c);
        const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(run) + epsilon);
        for (int64_t c = 0; c < run; ++c) {
          Set(out, i, begin + c, Get(x, i, begin + c) * inverse * Get(weight, 0, c));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoLinear(Stream&, ConstMatrixView x, const PackedWeights& packed, bool accumulate,
                        MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights,
                             OfOwnKind<ReferenceWeights>(packed, "the PackedWeights were"));
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t n = 0; n < out.cols; ++n) {
        const float* row = weights->row(n);
        float sum = accumulate ? Get(out, i, n) : 0.0f;
        for (int64_t c = 0; c < x.cols; ++c) sum += Get(x, i, c) * row[c];
        Set(out, i, n, sum);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<PackedExperts>> DoPackExperts(int32_t num_experts, int64_t rows,
                                                               int64_t cols,
                                                               const WeightSource& source) override {
    return PackExpertsByDefinition(num_experts, rows, cols, source);
  }

  absl::Status DoChooseExperts(Stream&, ConstMatrixView logits, const RoutingSpec& spec, IndicesView experts,
                               MatrixView weights) override {
    ChooseExpertsByDefinition(logits, spec, experts, weights);
    return absl::OkStatus();
  }

  absl::Status DoExpertLinear(Stream&, ConstMatrixView x, const PackedExperts& weights, IndicesView experts,
                              MatrixView out) override {
    return ExpertLinearByDefinition(x, weights, experts, out);
  }

  absl::Status DoSumExperts(Stream&, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                            MatrixView out) override {
    SumExpertsByDefinition(x, weights, accumulate, out);
    return absl::OkStatus();
  }

  absl::Status DoAddExpertBias(Stream&, ConstMatrixView bias, IndicesView experts, MatrixView out) override {
    return AddExpertBiasByDefinition(bias, experts, out);
  }

  absl::Status DoGatedActivation(Stream&, Activation activation, ConstMatrixView gate, ConstMatrixView up,
                                 MatrixView out) override {
    for (int64_t i = 0; i < out.rows; ++i) {
      for (int64_t c = 0; c < out.cols; ++c) {
        Set(out, i, c, Gated(activation, Get(gate, i, c), Get(up, i, c)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoAddScaled(Stream&, ConstMatrixView x, float scale, MatrixView out) override {
    for (int64_t i = 0; i < out.rows; ++i) {
      for (int64_t c = 0; c < out.cols; ++c) {
        Set(out, i, c, Get(out, i, c) + scale * Get(x, x.rows == 1 ? 0 : i, c));
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoSoftCap(Stream&, float cap, MatrixView x) override {
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t c = 0; c < x.cols; ++c) Set(x, i, c, SoftCapped(Get(x, i, c), cap));
    }
    return absl::OkStatus();
  }

  absl::Status DoRope(Stream&, const BatchPlan& batch, const RopeTable& table, int32_t num_heads,
                      MatrixView x) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    for (int64_t i = 0; i < x.rows; ++i) {
      for (int64_t h = 0; h < num_heads; ++h) {
        RotateHead(*rope, plan->position(i),
                   static_cast<float*>(x.data) + i * x.row_stride + h * rope->head_dim());
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoKvScatter(Stream&, const BatchPlan& batch, const RopeTable& table, ConstMatrixView k,
                           ConstMatrixView v, KvPagesView pages) override {
    return Scatter(
        batch, table, pages, [&](int64_t row, int64_t col) { return Get(k, row, col); },
        [&](int64_t row, int64_t col) { return Get(v, row, col); });
  }

  absl::Status DoKvLoad(Stream&, const BatchPlan& batch, const RopeTable& table, KvSectionView k,
                        KvSectionView v, KvPagesView pages) override {
    const KvSectionLayout k_layout = k.layout(), v_layout = v.layout();
    return Scatter(
        batch, table, pages,
        [&](int64_t row, int64_t col) { return LoadSectionElement(k, k_layout, row, col); },
        [&](int64_t row, int64_t col) { return LoadSectionElement(v, v_layout, row, col); });
  }

  absl::StatusOr<std::unique_ptr<KvCorrection>> DoCreateKvCorrection(const KvCorrectionSpec& spec) override {
    return std::make_unique<ReferenceKvCorrection>(spec);
  }

  absl::Status DoCorrectKv(Stream&, KvSectionView k, KvSectionView v, const KvCorrection& correction,
                           MutableKvSectionView k_out, MutableKvSectionView v_out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* own,
                             OfOwnKind<ReferenceKvCorrection>(correction, "the KvCorrection was"));
    const KvSectionLayout k_layout = k.layout(), v_layout = v.layout();
    std::vector<float> x(2 * k.cols);
    for (int64_t i = 0; i < k.rows; ++i) {
      for (int64_t c = 0; c < k.cols; ++c) {
        x[c] = LoadSectionElement(k, k_layout, i, c);
        x[k.cols + c] = LoadSectionElement(v, v_layout, i, c);
      }
      const std::vector<float> y = own->Apply(i, x);
      for (int64_t c = 0; c < k.cols; ++c) {
        StoreElement(k_out.data, DenseType(k_out.encoding), i * k.cols + c, y[c]);
        StoreElement(v_out.data, DenseType(v_out.encoding), i * k.cols + c, y[k.cols + c]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoEncodeKv(Stream&, ConstMatrixView in, MutableKvSectionView out) override {
    EncodeSection(in, out);
    return absl::OkStatus();
  }

  // Writes row i of K (rotated) and of V into its page slot; k(row, col) and v(row, col) give the values.
  template <typename K, typename V>
  static absl::Status Scatter(const BatchPlan& batch, const RopeTable& table, KvPagesView pages, const K& k,
                              const V& v) {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    const PageValues keys = PageValues::Keys(pages), values = PageValues::Values(pages);
    std::vector<float> head(pages.head_dim);
    for (int64_t i = 0; i < batch.num_rows(); ++i) {
      const int32_t position = plan->position(i);
      for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
        const int64_t slot = plan->Slot(pages, plan->sequence_of_row(i), h, position);
        const int64_t first = int64_t{h} * pages.head_dim;
        for (int32_t d = 0; d < pages.head_dim; ++d) head[d] = k(i, first + d);
        RotateHead(*rope, position, head.data());
        keys.Store(slot, head.data());
        for (int32_t d = 0; d < pages.head_dim; ++d) head[d] = v(i, first + d);
        values.Store(slot, head.data());
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoSelectiveAttention(Stream&, const BatchPlan& batch, ConstMatrixView q,
                                    const AttentionSpec& spec, KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    const int32_t group = spec.num_heads / pages.num_kv_heads;
    const PageValues values = PageValues::Values(pages);
    for (int64_t i = 0; i < q.rows; ++i) {
      for (int32_t h = 0; h < spec.num_heads; ++h) {
        int32_t first = 0;
        const std::vector<float> p = AttentionRow(*plan, i, q, h, h / group, spec, pages, &first);
        std::vector<float> sum(pages.head_dim, 0.0f);
        for (size_t j = 0; j < p.size(); ++j) {
          const auto key = static_cast<int32_t>(first + j);
          const int64_t slot = plan->Slot(pages, plan->sequence_of_row(i), h / group, key);
          for (int32_t d = 0; d < pages.head_dim; ++d) sum[d] += p[j] * values.Load(slot, d);
        }
        for (int32_t d = 0; d < pages.head_dim; ++d) Set(out, i, int64_t{h} * pages.head_dim + d, sum[d]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoSpreadDeviation(Stream&, const BatchPlan& batch, const RopeTable& table,
                                 absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                 const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                 KvPagesView pages) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    SpreadDeviationByDefinition(*plan, *rope, ranges, keys, values, k, v, pages);
    return absl::OkStatus();
  }

  absl::Status DoValueLengths(Stream&, const BatchPlan& batch, KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    const PageValues values = PageValues::Values(pages);
    for (int64_t s = 0; s < plan->num_sequences(); ++s) {
      for (int32_t position = 0; position < plan->kv_len(s); ++position) {
        float sum = 0;
        for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
          const int64_t slot = plan->Slot(pages, s, h, position);
          for (int64_t d = 0; d < pages.head_dim; ++d) {
            const float value = values.Load(slot, d);
            sum += value * value;
          }
        }
        Set(out, 0, plan->kv_offset(s) + position, std::sqrt(sum));
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoAttentionMass(Stream&, const BatchPlan& batch, ConstMatrixView q, const AttentionSpec& spec,
                               KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    for (int64_t j = 0; j < out.cols; ++j) Set(out, 0, j, 0.0f);
    for (int64_t i = 0; i < q.rows; ++i) {
      const int64_t offset = plan->kv_offset(plan->sequence_of_row(i));
      for (int32_t h = 0; h < spec.num_heads; ++h) {
        int32_t first = 0;
        const int32_t kv_head = h / (spec.num_heads / pages.num_kv_heads);
        const std::vector<float> p = AttentionRow(*plan, i, q, h, kv_head, spec, pages, &first);
        for (size_t j = 0; j < p.size(); ++j) {
          const int64_t key = offset + first + static_cast<int64_t>(j);
          Set(out, 0, key, Get(out, 0, key) + p[j] / static_cast<float>(spec.num_heads));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status DoKvDeviation(Stream&, ConstMatrixView fresh, KvSectionView stored, MatrixView out) override {
    const KvSectionLayout layout = stored.layout();
    for (int64_t i = 0; i < fresh.rows; ++i) {
      float sum = 0;
      for (int64_t c = 0; c < fresh.cols; ++c) {
        const float difference = Get(fresh, i, c) - LoadSectionElement(stored, layout, i, c);
        sum += difference * difference;
      }
      Set(out, 0, i, sum);
    }
    return absl::OkStatus();
  }

  absl::Status DoSelectTopK(Stream&, ConstMatrixView scores, IndicesView out) override {
    const auto rank = [&](int64_t i) {
      const float score = Get(scores, 0, i);
      return std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
    };
    std::vector<int32_t> order(scores.cols);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rank(a) > rank(b); });
    std::sort(order.begin(), order.begin() + out.size);
    std::copy_n(order.begin(), out.size, out.data);
    return absl::OkStatus();
  }

  absl::Status DoSampleTokens(Stream&, ConstMatrixView logits, absl::Span<const SamplingSpec> specs,
                              absl::Span<SampledToken> out) override {
    for (int64_t i = 0; i < logits.rows; ++i) {
      out[i] = SampleRow(
          {static_cast<const float*>(logits.Rows(i, 1).data), static_cast<size_t>(logits.cols)}, specs[i]);
    }
    return absl::OkStatus();
  }

  absl::Status DoGatherRows(Stream&, ConstMatrixView in, absl::Span<const int32_t> row_indices,
                            MatrixView out) override {
    for (int64_t i = 0; i < out.rows; ++i) {
      std::memcpy(out.Rows(i, 1).data, in.Rows(row_indices[i], 1).data, in.cols * SizeOf(in.dtype));
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace kvblend::kernels
