#include "kernels/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/reference/elements.h"

namespace kvblend::kernels {
namespace {

using reference::Get;
using reference::Set;

class ReferenceExperts final : public PackedExperts {
 public:
  ReferenceExperts(int32_t num_experts, int64_t rows, int64_t cols)
      : num_experts_(num_experts), rows_(rows), cols_(cols), values_(num_experts * rows * cols) {}
  int32_t num_experts() const override { return num_experts_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  /// Row `index` of all experts' rows, one expert below the other.
  absl::Span<float> row(int64_t index) { return absl::MakeSpan(values_).subspan(index * cols_, cols_); }
  const float* row(int64_t expert, int64_t index) const {
    return values_.data() + (expert * rows_ + index) * cols_;
  }

 private:
  const int32_t num_experts_;
  const int64_t rows_, cols_;
  std::vector<float> values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PackedExperts>> PackExpertsByDefinition(int32_t num_experts, int64_t rows,
                                                                       int64_t cols,
                                                                       const WeightSource& source) {
  auto experts = std::make_unique<ReferenceExperts>(num_experts, rows, cols);
  for (int64_t row = 0; row < num_experts * rows; ++row) {
    KVBLEND_RETURN_IF_ERROR(source.ReadRow(row, experts->row(row)));
  }
  return experts;
}

void ChooseExpertsByDefinition(ConstMatrixView logits, const RoutingSpec& spec, IndicesView experts,
                               MatrixView weights) {
  for (int64_t i = 0; i < logits.rows; ++i) {
    const auto logit = [&](int32_t expert) {
      const float value = Get(logits, i, expert);
      return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
    };
    std::vector<int32_t> order(logits.cols);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    const float max = logit(order[0]);
    float sum = 0;
    const int64_t summed = spec.renormalise ? spec.num_chosen : logits.cols;
    for (int64_t j = 0; j < summed; ++j) sum += std::exp(logit(order[j]) - max);
    for (int64_t j = 0; j < spec.num_chosen; ++j) {
      experts.data[i * spec.num_chosen + j] = order[j];
      Set(weights, i, j, std::exp(logit(order[j]) - max) / sum);
    }
  }
}

absl::Status ExpertLinearByDefinition(ConstMatrixView x, const PackedExperts& packed, IndicesView experts,
                                      MatrixView out) {
  KVBLEND_ASSIGN_OR_RETURN(const auto* weights,
                           OfOwnKind<ReferenceExperts>(packed, "the PackedExperts were"));
  KVBLEND_RETURN_IF_ERROR(CheckExpertNumbers("ExpertLinear", experts, weights->num_experts()));
  for (int64_t i = 0; i < out.rows; ++i) {
    const int64_t row = i / (out.rows / x.rows);
    for (int64_t n = 0; n < out.cols; ++n) {
      const float* weight = weights->row(experts.data[i], n);
      float sum = 0;
      for (int64_t c = 0; c < x.cols; ++c) sum += Get(x, row, c) * weight[c];
      Set(out, i, n, sum);
    }
  }
  return absl::OkStatus();
}

absl::Status AddExpertBiasByDefinition(ConstMatrixView bias, IndicesView experts, MatrixView out) {
  KVBLEND_RETURN_IF_ERROR(CheckExpertNumbers("AddExpertBias", experts, bias.rows));
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t c = 0; c < out.cols; ++c) Set(out, i, c, Get(out, i, c) + Get(bias, experts.data[i], c));
  }
  return absl::OkStatus();
}

void SumExpertsByDefinition(ConstMatrixView x, ConstMatrixView weights, bool accumulate, MatrixView out) {
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t c = 0; c < out.cols; ++c) {
      float sum = accumulate ? Get(out, i, c) : 0.0f;
      for (int64_t j = 0; j < weights.cols; ++j) {
        sum += Get(weights, i, j) * Get(x, i * weights.cols + j, c);
      }
      Set(out, i, c, sum);
    }
  }
}

}  // namespace kvblend::kernels
