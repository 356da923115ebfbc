#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/bench/gpu/inputs.h"
#include "tests/bench/gpu/operations.h"

namespace kvblend::gpu_bench {
namespace {

using kernels::DataType;

// Queries and weights of the softmax are rounded to bf16 before their products, the result once more: three
// times 2^-9 of a value in the mean, with as much again to spare.
constexpr double kAttentionBound = 0.012;
// The mass adds up fp32 values of an exponential of products of rounded queries.
constexpr double kMassBound = 0.012;
// Sums of squares in fp32, in another order.
constexpr double kLengthBound = 1e-5;

struct Case {
  std::string what;
  std::vector<int32_t> positions;
};

std::vector<Case> Cases(const Sizes& sizes) {
  const auto gathered = [&](int32_t rows) {
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < rows; ++i) {
      positions.push_back(static_cast<int32_t>((int64_t{i} + 1) * sizes.tokens / rows - 1));
    }
    return positions;
  };
  return {{"prefill", Range(0, sizes.tokens)},
          {"gathered", gathered(sizes.gathered)},
          {"gathered", gathered(sizes.gathered / 3)},
          {"question", Range(sizes.tokens - sizes.question, sizes.tokens)},
          {"decode", Range(sizes.tokens - 1, sizes.tokens)}};
}

std::string ShapeOf(const Case& test, const Sizes& sizes) {
  return absl::StrCat(test.what, ": ", test.positions.size(), " rows, ", sizes.tokens, " keys, ",
                      sizes.num_heads, " heads, ", sizes.num_kv_heads, " kv heads of ", sizes.head_dim);
}

// Pairs of a query head and a key that it sees, times the length of both.
double UnmaskedProducts(const Case& test, const Sizes& sizes) {
  double keys = 0;
  for (const int32_t position : test.positions) keys += position + 1;
  return keys * sizes.num_heads * sizes.head_dim;
}

double KvBytes(const Sizes& sizes) { return 2.0 * sizes.tokens * sizes.num_kv_heads * sizes.head_dim * 2; }

class AttentionBench {
 public:
  static absl::StatusOr<AttentionBench> Create(Bench& bench) {
    AttentionBench attention(bench);
    KVBLEND_ASSIGN_OR_RETURN(attention.kv_, PagedKv::Create(bench, 11));
    return attention;
  }

  absl::Status Attention(const Case& test) {
    const Sizes& sizes = bench_.sizes();
    const auto rows = static_cast<int64_t>(test.positions.size());
    KVBLEND_ASSIGN_OR_RETURN(Mirror q, Mirror::Random(bench_, DataType::kF32, rows, cols_, 12));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kBF16, rows, cols_));
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, kv_.Plan(bench_, test.positions));
    const auto attend = [&] {
      return bench_.backend().SelectiveAttention(bench_.stream(), *plan.device, q.device(),
                                                 {sizes.num_heads, scale_}, kv_.On(bench_.device()),
                                                 out.device());
    };
    KVBLEND_RETURN_IF_ERROR(attend());
    // Every row stands for itself, so a few of them are a sample.
    const std::vector<int32_t> sample = SampleRows(rows);
    std::vector<int32_t> positions;
    for (const int32_t row : sample) positions.push_back(test.positions[row]);
    std::vector<float> queries = q.HostRows(sample), expected(queries.size());
    KVBLEND_ASSIGN_OR_RETURN(const auto sample_plan, kv_.Plan(bench_, positions));
    const Side reference = bench_.reference();
    KVBLEND_RETURN_IF_ERROR(reference.backend.SelectiveAttention(reference.stream, *sample_plan.host,
                                                                 Floats(queries), {sizes.num_heads, scale_},
                                                                 kv_.On(reference), Floats(expected)));
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> actual, out.DeviceRows(bench_, sample));
    const Work work = {
        .operation = "SelectiveAttention",
        .shape = ShapeOf(test, sizes),
        .flops = 4 * UnmaskedProducts(test, sizes),
        .bytes = static_cast<double>(rows * cols_ * (4 + 2)) + KvBytes(sizes),
        .error = RelativeError(actual, expected),
        .error_bound = kAttentionBound,
    };
    return bench_.Add(work, attend);
  }

  absl::Status ValueLengths() {
    const Sizes& sizes = bench_.sizes();
    KVBLEND_ASSIGN_OR_RETURN(Mirror lengths, Mirror::Zeros(bench_, DataType::kF32, 1, sizes.tokens));
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, kv_.Plan(bench_, Range(sizes.tokens - 1, sizes.tokens)));
    const Work work = {
        .operation = "ValueLengths",
        .shape = absl::StrCat(sizes.tokens, " tokens, ", sizes.num_kv_heads, " kv heads of ", sizes.head_dim),
        .bytes = KvBytes(sizes) / 2 + sizes.tokens * 4.0,
        .error_bound = kLengthBound,
    };
    return bench_.Compare(work, lengths, [&](const Side& on) {
      return on.backend.ValueLengths(on.stream, plan.On(on), kv_.On(on), lengths.On(on));
    });
  }

  absl::Status Mass(const Case& test) {
    const Sizes& sizes = bench_.sizes();
    const auto rows = static_cast<int64_t>(test.positions.size());
    KVBLEND_ASSIGN_OR_RETURN(Mirror q, Mirror::Random(bench_, DataType::kF32, rows, cols_, 13));
    KVBLEND_ASSIGN_OR_RETURN(Mirror mass, Mirror::Zeros(bench_, DataType::kF32, 1, sizes.tokens));
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, kv_.Plan(bench_, test.positions));
    const Work work = {
        .operation = "AttentionMass",
        .shape = ShapeOf(test, sizes),
        .flops = 4 * UnmaskedProducts(test, sizes),  // the scores twice: for the sums, then for the mass
        .bytes = static_cast<double>(rows * cols_ * 4) + KvBytes(sizes) / 2 + sizes.tokens * 4.0,
        .error_bound = kMassBound,
    };
    return bench_.Compare(work, mass, [&](const Side& on) {
      return on.backend.AttentionMass(on.stream, plan.On(on), q.On(on), {sizes.num_heads, scale_}, kv_.On(on),
                                      mass.On(on));
    });
  }

 private:
  explicit AttentionBench(Bench& bench)
      : bench_(bench),
        cols_(int64_t{bench.sizes().num_heads} * bench.sizes().head_dim),
        scale_(1.0f / std::sqrt(static_cast<float>(bench.sizes().head_dim))) {}

  kernels::MatrixView Floats(std::vector<float>& values) const {
    return {values.data(), DataType::kF32, static_cast<int64_t>(values.size()) / cols_, cols_, cols_};
  }

  Bench& bench_;
  const int64_t cols_;
  const float scale_;
  PagedKv kv_;
};

}  // namespace

absl::Status MeasureAttention(Bench& bench) {
  KVBLEND_ASSIGN_OR_RETURN(AttentionBench attention, AttentionBench::Create(bench));
  for (const Case& test : Cases(bench.sizes())) {
    KVBLEND_RETURN_IF_ERROR(attention.Attention(test));
    if (test.what == "question") KVBLEND_RETURN_IF_ERROR(attention.Mass(test));
  }
  return attention.ValueLengths();
}

}  // namespace kvblend::gpu_bench
