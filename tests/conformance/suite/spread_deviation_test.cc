// SpreadDeviation of every backend against the definition in double precision.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

using Pair = std::array<double, 2>;
using Head = std::vector<double>;

// What turns a head to a position and back.
class Rotation {
 public:
  Rotation(Backend& backend, RopeLayout layout, int32_t head_dim, float magnitude)
      : layout_(layout), magnitude_(magnitude), inv_freq_(head_dim / 2) {
    for (size_t i = 0; i < inv_freq_.size(); ++i) {
      inv_freq_[i] = static_cast<float>(std::pow(1000.0, -2.0 * static_cast<double>(i) / head_dim));
    }
    table_ = backend.CreateRopeTable({layout, head_dim, 512, inv_freq_, magnitude}).value();
  }
  const RopeTable& table() const { return *table_; }

  Head At(int64_t position, Head head) const {
    ForPairs(position, head, [&](double cos, double sin, const Pair& x) -> Pair {
      return {magnitude_ * (x[0] * cos - x[1] * sin), magnitude_ * (x[0] * sin + x[1] * cos)};
    });
    return head;
  }
  Head Undone(int64_t position, Head head) const {
    ForPairs(position, head, [&](double cos, double sin, const Pair& x) -> Pair {
      return {(x[0] * cos + x[1] * sin) / magnitude_, (x[1] * cos - x[0] * sin) / magnitude_};
    });
    return head;
  }

 private:
  template <typename Turn>
  void ForPairs(int64_t position, Head& head, const Turn& turn) const {
    for (size_t i = 0; i < inv_freq_.size(); ++i) {
      const bool interleaved = layout_ == RopeLayout::kInterleaved;
      double &a = head[interleaved ? 2 * i : i], &b = head[interleaved ? 2 * i + 1 : i + inv_freq_.size()];
      const double angle = static_cast<double>(position) * inv_freq_[i];
      const Pair turned = turn(std::cos(angle), std::sin(angle), {a, b});
      a = turned[0];
      b = turned[1];
    }
  }

  const RopeLayout layout_;
  const double magnitude_;
  std::vector<float> inv_freq_;
  std::unique_ptr<RopeTable> table_;
};

struct Spreads {
  DeviationSpread keys, values;
};

class SpreadDeviationConformance : public ConformanceTest {
 protected:
  static constexpr int32_t kHeads = 3;

  struct Case {
    std::vector<int32_t> rows;
    std::vector<ColumnRange> ranges;
    int32_t kv_len = 330;
  };
  // Ranges that begin and end anywhere in a page or a tile: with some rows, with a row for every token,
  // without any, with many, and with one that is too far from the last tokens.
  Case Ragged() {
    Case result{{5, 6, 19, 20, 64}, {{3, 71}, {71, 100}, {100, 160}, {161, 250}, {251, 330}}};
    for (int32_t i = 71; i < 100; ++i) result.rows.push_back(i);
    result.rows.push_back(160);
    for (int32_t i = 161; i < 250; i += 1 + static_cast<int32_t>(rng() % 4)) result.rows.push_back(i);
    result.rows.insert(result.rows.end(), {250, 260, 335});
    result.kv_len = 340;
    return result;
  }

  void Check(const Case& of, const Spreads& spreads, DataType dtype, int32_t page_size, int32_t head_dim,
             RopeLayout layout, float magnitude = 1) {
    SCOPED_TRACE(absl::StrCat(std::string(Name(dtype)), ", page_size ", page_size, ", head_dim ", head_dim,
                              ", layout ", static_cast<int>(layout), ", magnitude ", magnitude));
    const BatchCase batch{.sequences = {{of.kv_len, of.rows}}, .page_size = page_size};
    PagedBatch kv(backend, batch, kHeads, head_dim, dtype, rng);
    const Rotation rotation(backend, layout, head_dim, magnitude);
    const int64_t cols = kHeads * head_dim;
    Tensor k(backend, kF32, batch.num_rows(), cols, cols + 6), v(backend, kF32, batch.num_rows(), cols);
    k.Randomize(rng);
    v.Randomize(rng);
    std::vector<double> expected_k = kv.k_tensor().Values(), expected_v = kv.v_tensor().Values();
    std::vector<double> bound_k(expected_k.size(), 0.0), bound_v(expected_v.size(), 0.0);
    for (const ColumnRange& range : of.ranges) {
      for (int32_t head = 0; head < kHeads; ++head) {
        for (const bool is_keys : {true, false}) {
          Expect(of, range, is_keys ? spreads.keys : spreads.values, kv, rotation, is_keys ? k : v, is_keys,
                 head, is_keys ? expected_k : expected_v, is_keys ? bound_k : bound_v);
        }
      }
    }
    ASSERT_OK(backend.SpreadDeviation(stream, kv.plan(), rotation.table(), of.ranges, spreads.keys,
                                      spreads.values, k.view(), v.view(), kv.pages()));
    ExpectWithin(kv.k_tensor().Values(), expected_k, bound_k);
    ExpectWithin(kv.v_tensor().Values(), expected_v, bound_v);
  }

 private:
  // Fills in what one head of one range is to be, and how far off it may be.
  void Expect(const Case& of, const ColumnRange& range, const DeviationSpread& spread, const PagedBatch& kv,
              const Rotation& rotation, const Tensor& fresh, bool is_keys, int32_t head,
              std::vector<double>& expected, std::vector<double>& bound) const {
    const auto head_dim = static_cast<int64_t>(fresh.cols() / kHeads);
    const auto held = [&](int32_t position) {
      Head result(head_dim);
      for (int64_t d = 0; d < head_dim; ++d)
        result[d] = is_keys ? kv.k(0, position, head, d) : kv.v(0, position, head, d);
      return result;
    };
    std::vector<std::pair<int32_t, Head>> deviations;
    for (size_t row = 0; row < of.rows.size(); ++row) {
      const int32_t position = of.rows[row];
      if (position < range.begin || position >= range.end) continue;
      Head deviation = is_keys ? rotation.Undone(position, held(position)) : held(position);
      for (int64_t d = 0; d < head_dim; ++d) {
        deviation[d] = fresh.at(static_cast<int64_t>(row), head * head_dim + d) - deviation[d];
      }
      deviations.emplace_back(position, deviation);
    }
    for (int32_t token = range.begin; token < range.end; ++token) {
      Head move(head_dim, 0.0);
      double weights = spread.reserve;
      int32_t nearest = std::numeric_limits<int32_t>::max();
      for (const auto& [position, deviation] : deviations) {
        nearest = std::min(nearest, std::abs(position - token));
        const double weight =
            std::exp(-std::abs(position - token) / static_cast<double>(spread.reach)) + spread.anywhere;
        weights += weight;
        for (int64_t d = 0; d < head_dim; ++d) move[d] += weight * deviation[d];
      }
      const bool stays = deviations.empty() || (spread.anywhere == 0 && nearest > 6 * spread.reach);
      for (double& value : move) value = stays ? 0 : value / weights;
      if (is_keys) move = rotation.At(token, move);
      const Head before = held(token);
      const int64_t slot = kv.SlotRow(0, token, head);
      for (int64_t d = 0; d < head_dim; ++d) {
        const int64_t element = is_keys ? kv.KeyElement(slot, d) : kv.ValueElement(slot, d);
        if (nearest == 0) {
          bound[element] = 1e30;  // undefined
        } else if (!stays) {
          expected[element] += move[d];
          const DataType dtype = kv.k_tensor().dtype();
          bound[element] = 1e-5 * (std::abs(before[d]) + 2) +
                           (dtype == kF32 ? 0 : 1.01 * UnitRoundoff(dtype) * std::abs(expected[element]));
        }
      }
    }
  }
};

constexpr Spreads kSpreads[] = {{{8, 0, 2}, {8, 0.05, 2}}, {{3.5, 0.02, 1}, {30, 0, 0.5}}};

TEST_P(SpreadDeviationConformance, MovesTokensByTheWeightedDeviationsOfTheRowsOfTheirRange) {
  for (const Spreads& spreads : kSpreads) {
    for (const DataType dtype : {kF32, kBF16, kF16}) {
      for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
        for (const auto& [head_dim, page_size] : {std::pair{64, 64}, {64, 16}, {34, 16}, {96, 128}}) {
          Check(Ragged(), spreads, dtype, page_size, head_dim, layout);
        }
      }
    }
  }
}

TEST_P(SpreadDeviationConformance, UndoesTheMagnitudeOfTheRotation) {
  Check(Ragged(), kSpreads[0], kF32, 16, 64, RopeLayout::kSplitHalf, 1.25);
  Check(Ragged(), kSpreads[0], kBF16, 64, 64, RopeLayout::kInterleaved, 0.75);
}

TEST_P(SpreadDeviationConformance, TakesManyRanges) {
  Case many;
  for (int32_t begin = 1; begin + 5 < 330; begin += 5) {
    many.ranges.push_back({begin, begin + 5});
    if (begin % 3 != 0) many.rows.push_back(begin + begin % 5);
  }
  Check(many, kSpreads[0], kBF16, 64, 64, RopeLayout::kInterleaved);
  Check(many, kSpreads[0], kF32, 16, 34, RopeLayout::kSplitHalf);
}

TEST_P(SpreadDeviationConformance, GivesTheSameBitsWhateverOtherRangesThereAre) {
  const Case all = Ragged();
  const BatchCase batch{.sequences = {{all.kv_len, all.rows}}, .page_size = 64};
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 64, 512);
  const auto moved = [&](bool at_once) {
    Rng same(7);
    PagedBatch kv(backend, batch, kHeads, 64, kBF16, same);
    Tensor k(backend, kF32, batch.num_rows(), kHeads * 64), v(backend, kF32, batch.num_rows(), kHeads * 64);
    k.Randomize(same);
    v.Randomize(same);
    const absl::Span<const ColumnRange> ranges = all.ranges;
    for (size_t i = 0; i < ranges.size(); i += at_once ? ranges.size() : 1) {
      EXPECT_OK(backend.SpreadDeviation(stream, kv.plan(), *rope,
                                        ranges.subspan(i, at_once ? ranges.size() : 1), kSpreads[0].keys,
                                        kSpreads[0].values, k.view(), v.view(), kv.pages()));
    }
    return std::pair(kv.k_tensor().Bytes(), kv.v_tensor().Bytes());
  };
  EXPECT_EQ(moved(true), moved(false));
}

// What is written for a row outside the ranges, or in one that needs no moves, is anything.
TEST_P(SpreadDeviationConformance, RowsThatMoveNothingHaveNoPartInIt) {
  Case outside;
  outside.rows = {0, 20};
  outside.ranges = {{10, 40}};
  outside.kv_len = 50;
  Check(outside, kSpreads[0], kF32, 16, 64, RopeLayout::kInterleaved);
  Case complete;
  complete.rows = {0, 1, 2, 3, 20};
  complete.ranges = {{0, 4}, {10, 40}};
  complete.kv_len = 50;
  Check(complete, kSpreads[0], kBF16, 16, 64, RopeLayout::kSplitHalf);
}

TEST_P(SpreadDeviationConformance, Errors) {
  const BatchCase batch{.sequences = {{40, {1, 39}}}}, two{.sequences = {{40, {1}}, {40, {1}}}};
  PagedBatch kv(backend, batch, 2, 8, kF32, rng), both(backend, two, 2, 8, kF32, rng);
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 8, 40);
  const auto short_rope = MakeRope(backend, RopeLayout::kInterleaved, 8, 39);
  const auto other_rope = MakeRope(backend, RopeLayout::kInterleaved, 6, 40);
  Tensor k = Random(2, 16), v = Random(2, 16), half(backend, kF16, 2, 16);
  const std::vector<std::byte> before = kv.k_tensor().Bytes();
  using Ranges = std::vector<ColumnRange>;
  const auto spread = [&](const Ranges& ranges, DeviationSpread keys = {}, DeviationSpread values = {}) {
    return backend.SpreadDeviation(stream, kv.plan(), *rope, ranges, keys, values, k.view(), v.view(),
                                   kv.pages());
  };
  ExpectInvalid(spread({{0, 41}}), {"SpreadDeviation: ranges[0] is columns 0 to 41", "40"});
  ExpectInvalid(spread({{0, 20}, {19, 30}}), {"ranges[1] begins at 19", "from 20 on"});
  ExpectInvalid(spread({{20, 30}, {0, 10}}), {"ranges[1] begins at 0", "from 30 on"});
  ExpectInvalid(spread({{0, 40}}, {.reach = 0}), {"keys.reach is 0", "above 0, at most 1000"});
  ExpectInvalid(spread({{0, 40}}, {}, {.reach = 1001}), {"values.reach is 1001"});
  ExpectInvalid(spread({{0, 40}}, {}, {.anywhere = -1}), {"values.anywhere is -1", "at least 0"});
  ExpectInvalid(spread({{0, 40}}, {.anywhere = std::numeric_limits<float>::quiet_NaN()}),
                {"keys.anywhere is nan"});
  ExpectInvalid(spread({{0, 40}}, {.reserve = 0}), {"keys.reserve is 0", "above 0"});
  const auto with = [&](PagedBatch& batch_kv, const RopeTable& table, ConstMatrixView keys,
                        ConstMatrixView values) {
    return backend.SpreadDeviation(stream, batch_kv.plan(), table, Ranges{{0, 30}}, {}, {}, keys, values,
                                   batch_kv.pages());
  };
  ExpectInvalid(with(both, *rope, k.view(), v.view()), {"the plan has 2 sequences", "1"});
  ExpectInvalid(with(kv, *short_rope, k.view(), v.view()), {"position 39"});
  ExpectInvalid(with(kv, *other_rope, k.view(), v.view()), {"rope.head_dim is 6", "8"});
  ExpectInvalid(with(kv, *rope, half.view(), v.view()), {"k.dtype is f16", "f32"});
  ExpectInvalid(with(kv, *rope, k.view(), v.view().Columns(0, 8)), {"v.cols is 8", "16"});
  ExpectInvalid(with(kv, *rope, k.view().Rows(0, 1), v.view()), {"k.rows is 1", "2"});
  EXPECT_EQ(kv.k_tensor().Bytes(), before);
  EXPECT_OK(spread({}));
  EXPECT_EQ(kv.k_tensor().Bytes(), before);
}

INSTANTIATE_CONFORMANCE(SpreadDeviationConformance);

}  // namespace
}  // namespace kvblend::kernels
