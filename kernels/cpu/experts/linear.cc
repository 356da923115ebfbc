#include "kernels/cpu/linear/linear.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status_macros.h"
#include "kernels/checks.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

using Product = absl::FunctionRef<absl::Status(ConstMatrixView x, MatrixView out)>;

// Brings `count` rows of one expert together, multiplies them, and puts the results where they belong.
absl::Status MultiplyTogether(CpuContext& context, ConstMatrixView x, const ExpertRows& rows,
                              absl::Span<const int32_t> of_expert, Product product, MatrixView out) {
  const auto count = static_cast<int64_t>(of_expert.size());
  if (count == 1) return product(x.Rows(rows.InputOf(of_expert[0]), 1), out.Rows(of_expert[0], 1));
  const int64_t in_bytes = RoundUp(count * x.cols * SizeOf(x.dtype), 64);
  ScratchPool::Lease lease =
      context.scratch.Borrow(in_bytes + count * out.cols * static_cast<int64_t>(sizeof(float)));
  if (!lease) return NoMemoryForLinear("the rows of an expert");
  const MatrixView gathered{lease.data(), x.dtype, count, x.cols, x.cols};
  const MatrixView results{lease.data() + in_bytes, DataType::kF32, count, out.cols, out.cols};
  const int64_t row_bytes = x.cols * SizeOf(x.dtype);
  ForRows(context.pool, count, 2 * row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(gathered.Rows(i, 1).data, x.Rows(rows.InputOf(of_expert[i]), 1).data, row_bytes);
    }
  });
  KVBLEND_RETURN_IF_ERROR(product(gathered, results));
  const int64_t out_bytes = out.cols * static_cast<int64_t>(sizeof(float));
  ForRows(context.pool, count, 2 * out_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out.Rows(of_expert[i], 1).data, results.Rows(i, 1).data, out_bytes);
    }
  });
  return absl::OkStatus();
}

// As few at a time as FewRowsLinear takes.
absl::Status MultiplyFewAtATime(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                                const ExpertRows& rows, absl::Span<const int32_t> of_expert, MatrixView out) {
  const size_t few = weights.quantized() != nullptr ? simd::kMaxQuantizedRows : simd::kMaxMatVecRows;
  for (size_t first = 0; first < of_expert.size(); first += few) {
    KVBLEND_RETURN_IF_ERROR(MultiplyTogether(
        context, x, rows, of_expert.subspan(first, few),
        [&](ConstMatrixView in, MatrixView to) {
          return FewRowsLinear(context, in, weights, /*accumulate=*/false, to);
        },
        out));
  }
  return absl::OkStatus();
}

absl::Status MultiplyMany(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                          const ExpertRows& rows, absl::Span<const int32_t> of_expert, MatrixView out) {
  const Tiles& tiles = context.TilesFor(weights.dtype());
  // oneDNN's products are left out: there a row's result may depend on the rows beside it.
  const auto of_codes = weights.quantized() == nullptr ? nullptr
                        : context.codes != nullptr     ? &Int8Linear
                        : context.pairs != nullptr     ? &WideInt16Linear
                                                       : nullptr;
  if (of_codes == nullptr && tiles.dtype != weights.dtype()) {
    return MultiplyFewAtATime(context, x, weights, rows, of_expert, out);
  }
  return MultiplyTogether(
      context, x, rows, of_expert,
      [&](ConstMatrixView in, MatrixView to) {
        return of_codes != nullptr ? of_codes(context, in, weights, /*accumulate=*/false, to)
                                   : TiledLinear(context, tiles, in, weights, /*accumulate=*/false, to);
      },
      out);
}

}  // namespace

int64_t CpuExperts::rows_as_alone() const {
  const int64_t any = PackedExperts::rows_as_alone();
  const bool in_one_way =
      std::all_of(experts_.begin(), experts_.end(), [&](const auto& e) { return e->rows_as_alone() == any; });
  return in_one_way ? any : kMaxRowsOfCodes * num_experts();
}

absl::Status CpuExpertLinear(CpuContext& context, ConstMatrixView x, const CpuExperts& experts,
                             IndicesView chosen, MatrixView out) {
  if (out.rows == 0) return absl::OkStatus();
  const int32_t num_experts = experts.num_experts();
  KVBLEND_RETURN_IF_ERROR(CheckExpertNumbers("ExpertLinear", chosen, num_experts));
  ListMemory memory(context.scratch);
  std::pmr::vector<int32_t> begin(num_experts + 1, 0, memory.resource()),
      order(out.rows, 0, memory.resource());
  std::pmr::vector<int32_t> next(num_experts, 0, memory.resource());
  for (int64_t i = 0; i < out.rows; ++i) ++begin[chosen.data[i] + 1];
  for (int32_t e = 0; e < num_experts; ++e) {
    begin[e + 1] += begin[e];
    next[e] = begin[e];
  }
  for (int64_t i = 0; i < out.rows; ++i) order[next[chosen.data[i]]++] = static_cast<int32_t>(i);
  const ExpertRows rows{begin, order, out.rows / x.rows};
  const bool few = out.rows <= kMaxRowsOfCodes * num_experts;
  if (few) KVBLEND_RETURN_IF_ERROR(ExpertCodeProducts(context, x, experts, rows, out));
  for (int32_t e = 0; e < num_experts; ++e) {
    const CpuWeights& weights = experts.expert(e);
    const auto of_expert = rows.rows.subspan(begin[e], rows.NumRows(e));
    if (of_expert.empty() || (few && weights.quantized() != nullptr)) continue;
    KVBLEND_RETURN_IF_ERROR(few ? MultiplyFewAtATime(context, x, weights, rows, of_expert, out)
                                : MultiplyMany(context, x, weights, rows, of_expert, out));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
