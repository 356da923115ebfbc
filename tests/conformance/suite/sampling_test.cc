// SampleTokens of every backend against a full sort of the vocabulary, field by field and bit by bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/host/sample_row.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"

namespace kvblend::kernels {
namespace {

/// kernels/sampling.h step by step.
SampledToken Oracle(const std::vector<float>& logits, const SamplingSpec& spec) {
  const auto n = static_cast<int32_t>(logits.size());
  const int bits = WeightBits(n);
  SampledToken expected;
  for (int32_t i = 0; i < n; ++i) {
    if (std::isfinite(logits[i])) continue;
    expected.invalid_token = i;
    expected.invalid_logit = logits[i];
    return expected;
  }
  std::vector<float> changed_logits = logits;
  for (const auto& [id, repeated, added] : spec.changes) {
    double changed = logits[id];
    if (repeated && changed > 0) changed /= spec.repetition_penalty;
    if (repeated && logits[id] <= 0) changed *= spec.repetition_penalty;
    const double largest = std::numeric_limits<float>::max();
    changed_logits[id] = static_cast<float>(std::clamp(changed + added, -largest, largest));
  }
  const auto sorted_by = [n](const std::vector<float>& values) {
    std::vector<int32_t> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
    return ids;
  };
  std::vector<int32_t> ids = sorted_by(changed_logits);
  expected.token_id = ids[0];
  if (spec.temperature > 0) {
    if (spec.top_k > 0 && spec.top_k < n) ids.resize(spec.top_k);
    const double largest = changed_logits[ids[0]];
    const auto weight = [&](int32_t id) {
      return WeightOf((changed_logits[id] - largest) / spec.temperature, bits);
    };
    uint64_t total = 0;
    for (const int32_t id : ids) total += weight(id);
    const double least = spec.min_p * std::ldexp(1.0, bits);
    std::erase_if(ids, [&](int32_t id) { return static_cast<double>(weight(id)) < least; });
    if (spec.top_p < 1) {
      const auto wanted = static_cast<uint64_t>(std::ceil(spec.top_p * static_cast<double>(total)));
      size_t kept = 0;
      for (uint64_t reached = 0; kept < ids.size() && reached < wanted; ++kept) reached += weight(ids[kept]);
      ids.resize(kept);
    }
    if (!(spec.top_k > 0 && spec.top_k < n) && spec.top_p >= 1) std::sort(ids.begin(), ids.end());
    uint64_t left = 0;
    for (const int32_t id : ids) left += weight(id);
    const uint64_t target =
        std::min(left - 1, static_cast<uint64_t>(spec.uniform * static_cast<double>(left)));
    uint64_t reached = 0;
    for (const int32_t id : ids) {
      reached += weight(id);
      expected.token_id = id;
      if (reached > target) break;
    }
  }
  expected.logit = logits[expected.token_id];
  if (spec.scored_token >= 0) expected.scored_logit = logits[spec.scored_token];
  if (!spec.wants_logprobs()) return expected;
  const std::vector<int32_t> most_likely = sorted_by(logits);
  expected.max_logit = logits[most_likely[0]];
  for (const float logit : logits) expected.weight_sum += WeightOf(double{logit} - expected.max_logit, bits);
  expected.num_top = std::min(spec.num_top, n);
  for (int32_t i = 0; i < expected.num_top; ++i) {
    expected.top_ids[i] = most_likely[i];
    expected.top_logits[i] = logits[most_likely[i]];
  }
  return expected;
}

void ExpectSame(const SampledToken& actual, const SampledToken& expected) {
  if (expected.invalid_token < 0) return ExpectSameToken(actual, expected);
  EXPECT_EQ(actual.invalid_token, expected.invalid_token);
  EXPECT_EQ(std::isnan(actual.invalid_logit), std::isnan(expected.invalid_logit));
  if (!std::isnan(expected.invalid_logit)) {
    EXPECT_EQ(actual.invalid_logit, expected.invalid_logit);
  }
}

class SamplingConformance : public ConformanceTest {
 protected:
  void ExpectOracle(const std::vector<std::vector<float>>& rows, const std::vector<SamplingSpec>& specs) {
    const auto vocab_size = static_cast<int64_t>(rows[0].size());
    Tensor logits(backend, kF32, rows.size(), vocab_size, vocab_size + rows.size() % 3);
    logits.Fill([&](int64_t row, int64_t col) { return rows[row][col]; });
    std::vector<SampledToken> out(rows.size());
    ASSERT_OK(backend.SampleTokens(stream, logits.view(), specs, absl::MakeSpan(out)));
    ASSERT_OK(backend.Synchronize(stream));
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("row ", i, " of ", rows.size(), ", ", vocab_size, " tokens, temperature ",
                                specs[i].temperature, ", top-k ", specs[i].top_k, ", top-p ", specs[i].top_p,
                                ", min-p ", specs[i].min_p, ", ", specs[i].changes.size(), " changes"));
      ExpectSame(out[i], Oracle(rows[i], specs[i]));
    }
  }

  std::vector<float> RandomLogits(int64_t vocab_size, bool many_ties) {
    NormalValues normal(0, 3);
    std::vector<float> logits(vocab_size);
    for (float& logit : logits) logit = many_ties ? std::round(normal(rng)) : normal(rng);
    return logits;
  }

  double Uniform() { return static_cast<double>(rng()) * 0x1p-32; }
};

TEST_P(SamplingConformance, EveryCombinationOfSteps) {
  for (const int64_t vocab_size : {1, 2, 31, 33, 511, 513, 2500}) {
    std::vector<LogitChange> changes(vocab_size);
    for (int32_t id = 0; id < vocab_size; ++id) {
      changes[id] = {id, rng() % 2 == 0, rng() % 2 == 0 ? static_cast<float>(8 * Uniform() - 4) : 0.0f};
    }
    std::shuffle(changes.begin(), changes.end(), rng);
    std::vector<std::vector<float>> rows;
    std::vector<SamplingSpec> specs;
    for (int i = 0; i < 24; ++i) {
      rows.push_back(RandomLogits(vocab_size, i % 3 == 0));
      SamplingSpec spec;
      if (i % 6 != 0) spec.temperature = 0.3 + 2 * Uniform();
      if (i & 1) spec.top_k = 1 + static_cast<int32_t>(rng() % (vocab_size + 3));
      if (i & 2) spec.top_p = 0.05 + 0.95 * Uniform();
      if (i & 4) spec.min_p = 0.3 * Uniform();
      if (i & 8) {
        spec.changes = absl::MakeConstSpan(changes).first(1 + rng() % vocab_size);
        spec.repetition_penalty = 0.5 + Uniform();
      }
      spec.uniform = i % 5 == 0 ? 1 - 0x1p-53 : Uniform();
      spec.num_top = static_cast<int32_t>(rng() % (kMaxTopTokens + 2)) - 1;
      spec.scored_token = static_cast<int32_t>(rng() % (vocab_size + 1)) - 1;
      specs.push_back(spec);
    }
    ExpectOracle(rows, specs);
  }
}

TEST_P(SamplingConformance, AVocabularyOfAModel) {
  std::vector<std::vector<float>> rows(3, RandomLogits(49152, false));
  ExpectOracle(rows, {{.temperature = 0.7, .top_p = 0.9, .uniform = 0.77, .num_top = 5},
                      {.num_top = 0, .scored_token = 77},
                      {.temperature = 1, .uniform = 0.5}});
}

TEST_P(SamplingConformance, EqualAndExtremeLogits) {
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> equal(600, 1.5f), zeros = [] {
    std::vector<float> values(600, 0.0f);
    for (size_t i = 0; i < values.size(); i += 2) values[i] = -0.0f;
    return values;
  }();
  std::vector<float> extremes(600, -largest);
  extremes[400] = largest;
  for (const std::vector<float>& row : {equal, zeros, extremes}) {
    const double tiny = std::numeric_limits<double>::denorm_min();
    const std::vector<SamplingSpec> specs = {{.num_top = 20},
                                             {.temperature = 1, .uniform = 0.999, .num_top = 20},
                                             {.temperature = 1, .top_k = 70, .uniform = 0.99},
                                             {.temperature = 1, .top_p = 0.33, .uniform = 0.99},
                                             {.temperature = 1, .top_p = 1e-300, .uniform = 0.5},
                                             {.temperature = tiny, .uniform = 0.9},
                                             {.temperature = 1, .min_p = 1, .uniform = 0.25}};
    ExpectOracle(std::vector<std::vector<float>>(specs.size(), row), specs);
  }
}

TEST_P(SamplingConformance, NamesTheFirstLogitThatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> rows(4, RandomLogits(700, false));
  rows[0][699] = nan;
  rows[1][33] = -infinity;
  rows[1][34] = nan;
  rows[3][0] = infinity;
  std::vector<SamplingSpec> specs(4);
  specs[1].temperature = 1;
  specs[3].num_top = 3;
  ExpectOracle(rows, specs);
}

TEST_P(SamplingConformance, Errors) {
  Tensor logits(backend, kF32, 2, 8), half(backend, kBF16, 2, 8);
  std::vector<SampledToken> out(2);
  const auto expect = [&](ConstMatrixView view, std::vector<SamplingSpec> specs, const char* part) {
    ExpectInvalid(backend.SampleTokens(stream, view, specs, absl::MakeSpan(out)), {"SampleTokens", part});
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<LogitChange> outside = {{3}, {8}},
                                 infinite = {{3, false, std::numeric_limits<float>::infinity()}};
  expect(half.view(), std::vector<SamplingSpec>(2), "logits.dtype is bf16");
  expect(logits.view(), std::vector<SamplingSpec>(1), "logits.rows is 2");
  expect(logits.view().Rows(0, 1), std::vector<SamplingSpec>(1),
         "out has 2 tokens; allowed: one per spec = 1");
  expect(logits.view().Columns(0, 0), std::vector<SamplingSpec>(2), "logits.cols is 0");
  expect(logits.view(), {{}, {.temperature = nan}}, "specs[1].temperature is nan");
  expect(logits.view(), {{.top_k = -1}, {}}, "specs[0].top_k is -1");
  expect(logits.view(), {{.top_p = 0}, {}}, "top_p is 0; allowed: above 0 to 1");
  expect(logits.view(), {{.min_p = 1.5}, {}}, "min_p is 1.5");
  expect(logits.view(), {{.repetition_penalty = 0}, {}}, "repetition_penalty is 0");
  expect(logits.view(), {{.uniform = 1}, {}}, "uniform is 1; allowed: 0 to below 1");
  expect(logits.view(), {{.num_top = 21}, {}}, "num_top is 21; allowed: -1 to 20");
  expect(logits.view(), {{.scored_token = 8}, {}}, "scored_token is 8; allowed: -1 to 7");
  expect(logits.view(), {{.changes = outside}, {}}, "changes.token_id is 8");
  expect(logits.view(), {{.changes = infinite}, {}}, "changes.added is inf");
  std::vector<SampledToken> none;
  ASSERT_OK(backend.SampleTokens(stream, logits.view().Rows(0, 0), {}, absl::MakeSpan(none)));
}

INSTANTIATE_CONFORMANCE(SamplingConformance);

}  // namespace
}  // namespace kvblend::kernels
