// ChooseExperts, AddExpertBias and SumExperts: small beside the products, so plain loops over the rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// Experts with their logits, the highest first, of the row `logits` [num_experts].
struct Chosen {
  int32_t experts[kMaxChosenExperts];
  float logits[kMaxChosenExperts];
};
Chosen ChooseHighest(const float* logits, int64_t num_experts, int32_t count) {
  Chosen chosen;
  int32_t found = 0;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    const float logit = std::isnan(logits[expert]) ? -std::numeric_limits<float>::infinity() : logits[expert];
    // Insertion behind those that are at least as high: equal ones stay in the order of their numbers.
    int32_t place = found;
    while (place > 0 && chosen.logits[place - 1] < logit) --place;
    if (place == count) continue;
    found = std::min(found + 1, count);
    for (int32_t j = found - 1; j > place; --j) {
      chosen.experts[j] = chosen.experts[j - 1];
      chosen.logits[j] = chosen.logits[j - 1];
    }
    chosen.experts[place] = expert;
    chosen.logits[place] = logit;
  }
  return chosen;
}

}  // namespace

void CpuChooseExperts(CpuContext& context, ConstMatrixView logits, const RoutingSpec& spec,
                      IndicesView experts, MatrixView weights) {
  ForRows(context.pool, logits.rows, logits.cols * 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* row = static_cast<const float*>(logits.Rows(i, 1).data);
      auto* out = static_cast<float*>(weights.Rows(i, 1).data);
      const Chosen chosen = ChooseHighest(row, logits.cols, spec.num_chosen);
      const float max = chosen.logits[0];
      float sum = 0;
      for (int32_t j = 0; j < spec.num_chosen; ++j) {
        experts.data[i * spec.num_chosen + j] = chosen.experts[j];
        sum += out[j] = std::exp(chosen.logits[j] - max);
      }
      if (!spec.renormalise) {
        sum = 0;
        for (int64_t e = 0; e < logits.cols; ++e) sum += std::isnan(row[e]) ? 0.0f : std::exp(row[e] - max);
      }
      for (int32_t j = 0; j < spec.num_chosen; ++j) out[j] /= sum;
    }
  });
}

absl::Status CpuAddExpertBias(CpuContext& context, ConstMatrixView bias, IndicesView experts,
                              MatrixView out) {
  KVBLEND_RETURN_IF_ERROR(CheckExpertNumbers("AddExpertBias", experts, bias.rows));
  ForRows(context.pool, out.rows, out.cols * 12, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto* added = static_cast<const float*>(bias.Rows(experts.data[i], 1).data);
      simd::AddScaledRow(added, 1.0f, static_cast<float*>(out.Rows(i, 1).data), out.cols);
    }
  });
  return absl::OkStatus();
}

void CpuSumExperts(CpuContext& context, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                   MatrixView out) {
  const int64_t count = weights.cols;
  ForRows(context.pool, out.rows, out.cols * (count + 2) * static_cast<int64_t>(sizeof(float)),
          [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              const auto* factors = static_cast<const float*>(weights.Rows(i, 1).data);
              auto* sum = static_cast<float*>(out.Rows(i, 1).data);
              if (!accumulate) std::fill_n(sum, out.cols, 0.0f);
              for (int64_t j = 0; j < count; ++j) {
                const auto* term = static_cast<const float*>(x.Rows(i * count + j, 1).data);
                simd::AddScaledRow(term, factors[j], sum, out.cols);
              }
            }
          });
}

}  // namespace kvblend::kernels
