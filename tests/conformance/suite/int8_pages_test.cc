// KV in int8 pages: written within half a step, read exactly as what its codes stand for; refused where a
// backend has none.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/host/float_convert.h"
#include "kernels/kv_correction.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

/// K or V of int8 pages in a backend's memory.
class CodedRows {
 public:
  CodedRows(Backend& backend, int64_t rows, int64_t head_dim)
      : backend_(backend),
        head_dim_(head_dim),
        groups_(KvPagesView::StepsPerHead(head_dim)),
        codes_(rows * head_dim, kUntouched),
        steps_(rows * groups_, kUntouchedStep),
        code_buffer_(backend.Allocate(rows * head_dim).value()),
        step_buffer_(backend.Allocate(rows * groups_ * 2).value()) {
    Upload();
  }

  void Randomize(Rng& rng) {
    for (int8_t& code : codes_) code = static_cast<int8_t>(static_cast<int>(rng() % 255) - 127);
    for (uint16_t& step : steps_) step = F32ToBf16(0.001f * static_cast<float>(1 + rng() % 40));
    Upload();
  }
  void Upload() {
    CopyIn(backend_, *code_buffer_, codes_.data(), codes_.size());
    CopyIn(backend_, *step_buffer_, steps_.data(), steps_.size() * 2);
  }
  void Download() {
    CopyOut(backend_, codes_.data(), *code_buffer_, codes_.size());
    CopyOut(backend_, steps_.data(), *step_buffer_, steps_.size() * 2);
  }

  float step(int64_t row, int64_t d) const { return Bf16ToF32(steps_[row * groups_ + d / kPageGroup]); }
  float value(int64_t row, int64_t d) const {
    return step(row, d) * static_cast<float>(codes_[row * head_dim_ + d]);
  }
  bool untouched(int64_t row, int64_t d) const {
    return codes_[row * head_dim_ + d] == kUntouched &&
           steps_[row * groups_ + d / kPageGroup] == kUntouchedStep;
  }
  bool operator==(const CodedRows& other) const { return codes_ == other.codes_ && steps_ == other.steps_; }
  void* code_data() { return code_buffer_->data(); }
  void* step_data() { return step_buffer_->data(); }

 private:
  static constexpr int8_t kUntouched = -128;  // no code
  static constexpr uint16_t kUntouchedStep = 0xBEEF;

  Backend& backend_;
  const int64_t head_dim_, groups_;
  std::vector<int8_t> codes_;
  std::vector<uint16_t> steps_;
  std::unique_ptr<Buffer> code_buffer_, step_buffer_;
};

class Int8PagesRefusalConformance : public ConformanceTest {
 protected:
  /// The pages of `kv`, which must have f32 elements, as int8 ones.
  static KvPagesView Coded(PagedBatch& kv, CodedRows& k, CodedRows& v) {
    KvPagesView pages = kv.pages();
    pages.dtype = kInt8;
    pages.k = k.code_data();
    pages.v = v.code_data();
    pages.k_steps = k.step_data();
    pages.v_steps = v.step_data();
    return pages;
  }
};

class Int8PagesConformance : public Int8PagesRefusalConformance {
 protected:
  void SetUp() override {
    if (!backend.has_int8_pages()) GTEST_SKIP() << "the backend " << GetParam() << " has no int8 pages";
  }

  /// That `coded` has what `exact`, K or V of kv, has in the slots of kv's rows, and nothing elsewhere.
  static void ExpectWritten(const PagedBatch& kv, const CodedRows& coded, const Tensor& exact) {
    const int64_t head_dim = exact.cols();
    std::vector<bool> written(exact.rows(), false);
    for (size_t s = 0; s < kv.batch().sequences.size(); ++s) {
      for (const int32_t position : kv.batch().sequences[s].positions) {
        for (int32_t h = 0; h < kv.num_kv_heads(); ++h) written[kv.SlotRow(s, position, h)] = true;
      }
    }
    for (int64_t row = 0; row < exact.rows(); ++row) {
      for (int64_t d = 0; d < head_dim; ++d) {
        if (!written[row]) {
          ASSERT_TRUE(coded.untouched(row, d)) << row;
          continue;
        }
        const double step = coded.step(row, d), value = exact.at(row, d);
        ASSERT_NEAR(coded.value(row, d), value, 0.5 * step + 1e-5 * std::abs(value)) << row << " " << d;
        // Not wider than it must be: bf16 rounds a step up by a hundredth at most.
        double largest = 0;
        const int64_t begin = d / kPageGroup * kPageGroup;
        for (int64_t i = begin; i < std::min(begin + kPageGroup, head_dim); ++i) {
          largest = std::max(largest, std::abs(exact.at(row, i)));
        }
        ASSERT_LE(step, 1.01 * largest / 127) << row << " " << d;
      }
    }
  }
};

TEST_P(Int8PagesRefusalConformance, AreRefusedByBackendsWithoutThemAndWithoutTheirSteps) {
  const BatchCase batch{.sequences = {{20, Range(0, 20)}}};
  PagedBatch kv(backend, batch, 1, 64, kF32, rng);
  CodedRows k(backend, kv.k_tensor().rows(), 64), v(backend, kv.k_tensor().rows(), 64);
  const KvPagesView good = Coded(kv, k, v);
  Tensor q = Random(20, 64), out(backend, kF32, 20, 64), mass(backend, kF32, 1, 20);
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 64, 64);
  const auto statuses = [&](const KvPagesView& pages) {
    return std::vector<absl::Status>{
        backend.SelectiveAttention(stream, kv.plan(), q.view(), {1, 0.1f}, pages, out.view()),
        backend.AttentionMass(stream, kv.plan(), q.view(), {1, 0.1f}, pages, mass.view()),
        backend.KvScatter(stream, kv.plan(), *rope, q.view(), q.view(), pages),
    };
  };
  k.Randomize(rng);
  v.Randomize(rng);
  const auto expect_refused = [&](const KvPagesView& pages, const char* why) {
    for (const absl::Status& status : statuses(pages)) ExpectInvalid(status, {why});
  };
  KvPagesView without = good, misaligned = good;
  without.v_steps = nullptr;
  misaligned.k_steps = static_cast<std::byte*>(good.k_steps) + 1;
  if (backend.has_int8_pages()) {
    for (const absl::Status& status : statuses(good)) EXPECT_OK(status);
    expect_refused(without, "pages.v_steps is null");
    expect_refused(misaligned, "k_steps or pages.v_steps is not aligned");
  } else {
    for (const KvPagesView& pages : {good, without, misaligned}) {
      expect_refused(pages, "pages.dtype is int8; allowed on this backend: f32, bf16, f16");
    }
  }
}

// What KvScatter and KvLoad write into f32 pages, each value within half a step of its group; and nothing
// else.
TEST_P(Int8PagesConformance, AreWrittenWithinHalfAStepIntoTheirSlotsOnly) {
  constexpr int32_t kHeads = 3;
  constexpr std::optional<KvEncoding> kSources[] = {std::nullopt,  // KvScatter
                                                    KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8,
                                                    KvEncoding::kBF16, KvEncoding::kF32};
  for (const int32_t head_dim : {2, 34, 64, 80, 96, 128}) {
    const int64_t cols = kHeads * head_dim;
    const BatchCase batch{.sequences = {{200, RandomPositions(rng, 61, 200)}, {17, Range(0, 17)}, {33, {32}}},
                          .page_size = 16};
    Tensor k(backend, kF32, batch.num_rows(), cols, cols + 6), v(backend, kF32, batch.num_rows(), cols);
    // Heads of very different size; one group is zeros.
    NormalValues normal;
    k.Fill([&](int64_t row, int64_t col) { return row == 3 ? 0.0f : std::exp2f(col % 9 - 4) * normal(rng); });
    v.Fill([&](int64_t row, int64_t) { return std::exp2f(row % 30 - 15) * normal(rng); });
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
      const auto rope = MakeRope(backend, layout, head_dim, 256);
      for (const std::optional<KvEncoding> encoding : kSources) {
        SCOPED_TRACE(absl::StrCat(
            "head_dim ", head_dim, layout == RopeLayout::kInterleaved ? " interleaved, " : " in halves, ",
            encoding.has_value() ? absl::StrCat("KvLoad of ", std::string(Name(*encoding))) : "KvScatter"));
        PagedBatch kv(backend, batch, kHeads, head_dim, kF32, rng);
        CodedRows k_codes(backend, kv.k_tensor().rows(), head_dim),
            v_codes(backend, kv.k_tensor().rows(), head_dim);
        const auto write = [&](const KvPagesView& pages) {
          if (!encoding.has_value()) {
            return backend.KvScatter(stream, kv.plan(), *rope, k.view(), v.view(), pages);
          }
          const Section k_section = Encoded(k, *encoding, KvPart::kKey),
                        v_section = Encoded(v, *encoding, KvPart::kValue);
          return backend.KvLoad(stream, kv.plan(), *rope, k_section.view(), v_section.view(), pages);
        };
        ASSERT_OK(write(kv.pages()));
        ASSERT_OK(write(Coded(kv, k_codes, v_codes)));
        kv.Download();
        k_codes.Download();
        v_codes.Download();
        ASSERT_NO_FATAL_FAILURE(ExpectWritten(kv, k_codes, kv.k_tensor()));
        ASSERT_NO_FATAL_FAILURE(ExpectWritten(kv, v_codes, kv.v_tensor()));
      }
    }
  }
}

TEST_P(Int8PagesConformance, CorrectedLoadsAreCorrectKvThenKvLoad) {
  constexpr int32_t kHeads = 3;
  const BatchCase batch{.sequences = {{200, RandomPositions(rng, 61, 200)}, {100, Range(7, 100)}},
                        .page_size = 16};
  const int64_t rows = batch.num_rows();
  const auto random = [&](int64_t count) {
    NormalValues normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(rng);
    return values;
  };
  for (const int32_t head_dim : {34, 64}) {
    const int64_t cols = kHeads * head_dim;
    Tensor x = Random(rows, cols);
    const Section k_memory(backend, KvEncoding::kBF16, KvPart::kKey, rows, cols),
        v_memory(backend, KvEncoding::kBF16, KvPart::kValue, rows, cols);
    for (const int64_t rank : {0, 5}) {
      const std::vector<float> scale = random(2 * cols), offset = random(kNumKvCorrectionPlaces * 2 * cols),
                               down = random(2 * cols * rank), up = random(2 * cols * rank);
      const auto correction = backend.CreateKvCorrection({cols, rank, scale, offset, down, up}).value();
      for (const KvEncoding encoding : kEncodings) {
        for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
          SCOPED_TRACE(absl::StrCat(std::string(Name(encoding)), ", head_dim ", head_dim, ", rank ", rank,
                                    layout == RopeLayout::kInterleaved ? ", interleaved" : ", in halves"));
          const auto rope = MakeRope(backend, layout, head_dim, 256);
          const Section k = Encoded(x, encoding, KvPart::kKey), v = Encoded(x, encoding, KvPart::kValue);
          PagedBatch kv(backend, batch, kHeads, head_dim, kF32, rng);
          const int64_t slots = kv.k_tensor().rows();
          CodedRows k_loaded(backend, slots, head_dim), v_loaded(backend, slots, head_dim),
              k_expected(backend, slots, head_dim), v_expected(backend, slots, head_dim);
          ASSERT_OK(backend.KvLoadCorrected(stream, kv.plan(), *rope, k.view(), v.view(), *correction,
                                            k_memory.view(), v_memory.view(), Coded(kv, k_loaded, v_loaded)));
          ASSERT_OK(
              backend.CorrectKv(stream, k.view(), v.view(), *correction, k_memory.view(), v_memory.view()));
          ASSERT_OK(backend.KvLoad(stream, kv.plan(), *rope, k_memory.view(), v_memory.view(),
                                   Coded(kv, k_expected, v_expected)));
          for (CodedRows* coded : {&k_loaded, &v_loaded, &k_expected, &v_expected}) coded->Download();
          ASSERT_TRUE(k_loaded == k_expected);
          ASSERT_TRUE(v_loaded == v_expected);
        }
      }
    }
  }
}

TEST_P(Int8PagesConformance, ValuesAreAsLongAsWhatTheCodesStandFor) {
  constexpr int32_t kHeads = 3;
  const BatchCase batch{.sequences = {{75, {74}}, {33, {32}}}, .page_size = 16};
  for (const int32_t head_dim : {34, 64}) {
    PagedBatch kv(backend, batch, kHeads, head_dim, kF32, rng);
    CodedRows k(backend, kv.k_tensor().rows(), head_dim), v(backend, kv.k_tensor().rows(), head_dim);
    v.Randomize(rng);
    Tensor out(backend, kF32, 1, 108);
    ASSERT_OK(backend.ValueLengths(stream, kv.plan(), Coded(kv, k, v), out.view()));
    const std::vector<double> lengths = out.Values();
    for (int64_t column = 0; column < 108; ++column) {
      const size_t sequence = column < 75 ? 0 : 1;
      double squares = 0;
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t row = kv.SlotRow(sequence, column - (sequence == 0 ? 0 : 75), h);
        for (int64_t d = 0; d < head_dim; ++d) squares += std::pow(v.value(row, d), 2);
      }
      ASSERT_NEAR(lengths[column], std::sqrt(squares), 1e-5 * std::sqrt(squares)) << column;
    }
  }
}

TEST_P(Int8PagesConformance, TokensMoveToWithinHalfAStepOfWhereTheyDoInF32AndOthersStay) {
  constexpr int32_t kHeads = 3;
  const BatchCase batch{.sequences = {{150, {4, 5, 30, 77, 90}}}, .page_size = 16};
  const std::vector<ColumnRange> ranges = {{3, 71}, {75, 100}, {100, 150}};
  const DeviationSpread keys{3, 0, 2}, values{8, 0.05, 2};
  for (const int32_t head_dim : {34, 64}) {
    SCOPED_TRACE(head_dim);
    PagedBatch kv(backend, batch, kHeads, head_dim, kF32, rng);
    const int64_t slots = kv.k_tensor().rows();
    CodedRows k(backend, slots, head_dim), v(backend, slots, head_dim);
    k.Randomize(rng);
    v.Randomize(rng);
    kv.k_tensor().Fill([&](int64_t row, int64_t d) { return k.value(row, d); });
    kv.v_tensor().Fill([&](int64_t row, int64_t d) { return v.value(row, d); });
    const CodedRows* const codes[] = {&k, &v};
    Tensor* const exact[] = {&kv.k_tensor(), &kv.v_tensor()};
    const std::vector<double> before[] = {exact[0]->Values(), exact[1]->Values()};
    Tensor fresh_k = Random(5, kHeads * head_dim), fresh_v = Random(5, kHeads * head_dim);
    const auto rope = MakeRope(backend, RopeLayout::kSplitHalf, head_dim, 256);
    for (const KvPagesView& pages : {kv.pages(), Coded(kv, k, v)}) {
      ASSERT_OK(backend.SpreadDeviation(stream, kv.plan(), *rope, ranges, keys, values, fresh_k.view(),
                                        fresh_v.view(), pages));
    }
    kv.Download();
    k.Download();
    v.Download();
    int moved[2] = {0, 0};
    for (int32_t position = 0; position < 150; ++position) {
      const std::vector<int32_t>& rows = batch.sequences[0].positions;
      if (std::find(rows.begin(), rows.end(), position) != rows.end()) continue;
      for (int32_t h = 0; h < kHeads; ++h) {
        const int64_t slot = kv.SlotRow(0, position, h);
        for (int64_t d = 0; d < head_dim; ++d) {
          for (const int part : {0, 1}) {
            const double value = exact[part]->at(slot, d), was = before[part][slot * head_dim + d];
            moved[part] += value != was;
            ASSERT_NEAR(codes[part]->value(slot, d), value,
                        value == was ? 0 : 0.5 * codes[part]->step(slot, d) + 1e-5 * (std::abs(value) + 1))
                << position << " " << d;
          }
        }
      }
    }
    // Those of the first two ranges, of K those that have a row at most 18 tokens away.
    EXPECT_NEAR(moved[0], kHeads * head_dim * (43 + 23), 20);
    EXPECT_NEAR(moved[1], kHeads * head_dim * (65 + 23), 20);
  }
}

TEST_P(Int8PagesConformance, AttentionSeesWhatTheCodesStandFor) {
  struct Case {
    const char* name;
    BatchCase batch;
    int32_t kv_heads, group, head_dim;
  };
  const Case cases[] = {
      {"prefill", {.sequences = {{300, Range(0, 300)}}}, 2, 3, 64},
      {"decode", {.sequences = {{700, {699}}, {33, {32}}, {1, {0}}}}, 3, 3, 64},
      {"decode, head_dim 80", {.sequences = {{150, {149}}}}, 2, 5, 80},
      {"gathered", {.sequences = {{600, RandomPositions(rng, 90, 600)}, {70, {3, 69}}}}, 2, 3, 64},
      {"few rows", {.sequences = {{1200, RandomPositions(rng, 11, 1200)}}, .sliding_window = 700}, 1, 4, 128},
      {"odd pages", {.sequences = {{131, Range(20, 131)}, {77, {76}}}, .page_size = 5}, 2, 2, 34},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const int32_t num_heads = c.kv_heads * c.group;
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    PagedBatch kv(backend, c.batch, c.kv_heads, c.head_dim, kF32, rng);
    CodedRows k(backend, kv.k_tensor().rows(), c.head_dim), v(backend, kv.k_tensor().rows(), c.head_dim);
    k.Randomize(rng);
    v.Randomize(rng);
    kv.k_tensor().Fill([&](int64_t row, int64_t d) { return k.value(row, d); });
    kv.v_tensor().Fill([&](int64_t row, int64_t d) { return v.value(row, d); });
    Tensor q = Random(c.batch.num_rows(), int64_t{num_heads} * c.head_dim);
    const KvPagesView pages = Coded(kv, k, v);
    // Backends may round what they decode to the type that they multiply.
    const AttentionOracle oracle =
        ComputeAttention(kv, q, num_heads, scale, {.pages = AttentionDtype(backend) == kF32 ? kF32 : kF16});
    ExpectWithin(Attend(kv.plan(), pages, q, kv.Spec(num_heads, scale)).Values(), oracle.out, oracle.bound);
    ExpectWithin(Mass(kv.plan(), pages, q, kv.Spec(num_heads, scale)).Values(), oracle.mass,
                 oracle.mass_bound);
  }
}

TEST_P(Int8PagesConformance, WhatIsNotFiniteShows) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    const BatchCase batch{.sequences = {{10, Range(0, 10)}}};
    PagedBatch kv(backend, batch, 1, 64, kF32, rng);
    CodedRows k(backend, kv.k_tensor().rows(), 64), v(backend, kv.k_tensor().rows(), 64);
    const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 64, 64);
    Tensor values(backend, kF32, 10, 64), q = Random(10, 64);
    values.Fill([&](int64_t row, int64_t col) { return row == 5 && col == 40 ? bad : 1.0f; });
    const KvPagesView pages = Coded(kv, k, v);
    const Section keys = Encoded(q, KvEncoding::kInt8, KvPart::kKey),
                  stored = Encoded(values, KvEncoding::kInt8, KvPart::kValue);
    for (const bool load : {false, true}) {
      SCOPED_TRACE(absl::StrCat(bad, load ? ", KvLoad" : ", KvScatter"));
      ASSERT_OK(load ? backend.KvLoad(stream, kv.plan(), *rope, keys.view(), stored.view(), pages)
                     : backend.KvScatter(stream, kv.plan(), *rope, q.view(), values.view(), pages));
      Tensor out = Attend(kv.plan(), pages, q, {1, 0.1f});
      out.Download();
      EXPECT_TRUE(std::isnan(out.at(5, 40)));
      EXPECT_TRUE(std::isnan(out.at(9, 40)));
      // This value is in another group, unless attention gives a head one step.
      EXPECT_TRUE(std::isfinite(out.at(9, 0)) || AttendsInCodes(backend));
    }
  }
}

INSTANTIATE_CONFORMANCE(Int8PagesRefusalConformance);
INSTANTIATE_CONFORMANCE(Int8PagesConformance);

}  // namespace
}  // namespace kvblend::kernels
