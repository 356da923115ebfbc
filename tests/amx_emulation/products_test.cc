// The products of AMX's tiles, each by itself, against sums in double precision: emulated ones in many
// shapes, and in few the machine code. In memory of exactly their size, for AddressSanitizer sees what
// emulated instructions access.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/float_convert.h"
#include "tests/amx_emulation/emulated_tiles.h"
#include "tests/amx_emulation/illegal_instructions.h"

namespace kvblend::kernels {
namespace {

constexpr float kUntouched = -7777.0f;

class AmxProductsTest : public testing::TestWithParam<bool> {
 protected:
  AmxProductsTest() {
    if (is_machine_code_) amx_emulation::EmulateIllegalInstructions();
  }

  using Sizes = std::vector<int64_t>;
  Sizes Few(const Sizes& few, const Sizes& all) const { return is_machine_code_ ? few : all; }

  // Pairs of normally distributed numbers.
  std::vector<uint32_t> Operand(int64_t words) {
    std::normal_distribution<float> normal;
    std::vector<uint32_t> operand(words);
    for (uint32_t& word : operand) word = F32ToBf16(normal(rng_)) | uint32_t{F32ToBf16(normal(rng_))} << 16;
    return operand;
  }
  std::vector<float> Floats(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> floats(count);
    for (float& value : floats) value = normal(rng_);
    return floats;
  }

  // Some steps, each `width` words, of panels in memory of their own.
  using Panels = std::vector<std::vector<uint32_t>>;
  Panels MakePanels(int64_t steps, int64_t panel_steps, int64_t width) {
    Panels panels;
    for (int64_t step = 0; step < steps; step += panel_steps) {
      panels.push_back(Operand(std::min(panel_steps, steps - step) * width));
    }
    return panels;
  }
  static std::vector<const uint32_t*> Pointers(const Panels& panels) {
    std::vector<const uint32_t*> pointers;
    for (const auto& panel : panels) pointers.push_back(panel.data());
    return pointers;
  }

  // row . column, where column's words are column_stride apart.
  static double Dot(const uint32_t* row, const uint32_t* column, int64_t column_stride, int64_t steps) {
    double sum = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const uint32_t a = row[step], b = column[step * column_stride];
      sum += double{Bf16ToF32(static_cast<uint16_t>(a))} * Bf16ToF32(static_cast<uint16_t>(b)) +
             double{Bf16ToF32(static_cast<uint16_t>(a >> 16))} * Bf16ToF32(static_cast<uint16_t>(b >> 16));
    }
    return sum;
  }
  static double Bound(int64_t steps) { return 1e-5 * std::sqrt(static_cast<double>(steps)); }

  const bool is_machine_code_ = GetParam();
  const Tiles tiles_ = is_machine_code_
                           ? WithAmxProducts(simd::GetTiles(DataType::kBF16))
                           : amx_emulation::WithEmulatedProducts(simd::GetTiles(DataType::kBF16));
  std::mt19937 rng_{20261122};
};

TEST_P(AmxProductsTest, Scores) {
  for (const int64_t head_dim : Few({2, 80}, {2, 32, 64, 80, 250})) {
    for (const int64_t num_keys : Few({40, 100}, {1, 32, 40, 64, 100, 512})) {
      const int64_t steps = tiles_.Steps(head_dim), keys = tiles_.KeysOfProduct(num_keys);
      const auto queries = Operand(tiles_.rows * steps);
      const Panels panels = MakePanels(RoundUp(keys, kPanelKeys) / kPanelKeys * steps, steps, kPanelKeys);
      std::vector<float> scores(tiles_.rows * kKeyBlock, kUntouched);
      {
        const TileScope scope(tiles_);
        tiles_.scores(queries.data(), Pointers(panels).data(), steps, keys, scores.data());
      }
      for (int64_t r = 0; r < tiles_.rows; ++r) {
        for (int64_t key = 0; key < kKeyBlock; ++key) {
          const float score = scores[r * kKeyBlock + key];
          if (key >= keys) {
            ASSERT_EQ(score, kUntouched) << "row " << r << ", key " << key << " of " << keys;
            continue;
          }
          const uint32_t* column = panels[key / kPanelKeys].data() + key % kPanelKeys;
          ASSERT_NEAR(score, Dot(queries.data() + r * steps, column, kPanelKeys, steps), Bound(steps))
              << "row " << r << ", key " << key << " of " << keys << ", head_dim " << head_dim;
        }
      }
    }
  }
}

TEST_P(AmxProductsTest, AddValues) {
  constexpr int64_t kRowWords = kKeyBlock / 2;
  for (const int64_t columns : Few({48}, {16, 32, 48, 64, 80, 256})) {
    for (const int64_t num_keys : Few({40}, {1, 32, 40, 512})) {
      const int64_t steps = tiles_.Steps(tiles_.KeysOfProduct(num_keys));
      const auto probabilities = Operand((tiles_.rows - 1) * kRowWords + steps);
      constexpr int64_t kPanelSteps = kPanelKeys / 2;
      const Panels values = MakePanels(steps, kPanelSteps, columns);
      auto alphas = Floats(tiles_.rows);
      alphas[3] = 1.0f;
      alphas[5] = 0.0f;
      const auto before = Floats(tiles_.rows * columns);
      auto out = before;
      {
        const TileScope scope(tiles_);
        tiles_.add_values(probabilities.data(), Pointers(values).data(), steps, columns, alphas.data(),
                          out.data());
      }
      for (int64_t r = 0; r < tiles_.rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          double expected = double{before[r * columns + c]} * alphas[r];
          for (int64_t step = 0; step < steps; step += kPanelSteps) {
            expected +=
                Dot(probabilities.data() + r * kRowWords + step, values[step / kPanelSteps].data() + c,
                    columns, std::min(kPanelSteps, steps - step));
          }
          ASSERT_NEAR(out[r * columns + c], expected, Bound(steps))
              << "row " << r << ", column " << c << " of " << columns << ", " << num_keys << " keys";
        }
      }
    }
  }
}

TEST_P(AmxProductsTest, LinearPair) {
  constexpr int64_t kOutputs = 16;
  for (const bool accumulate : {false, true}) {
    for (const bool fetches : {false, true}) {
      for (const int64_t steps : Few({48}, {16, 48, 288})) {
        constexpr int64_t kStride = 2 * kOutputs + 3, kColumnStride = kOutputs + 5;
        const int64_t row_stride = steps + 5;  // some steps of longer rows
        const auto rows = Operand(tiles_.rows * row_stride), left = Operand(steps * kColumnStride),
                   right = Operand(steps * kColumnStride);
        const auto before = Floats((tiles_.rows - 1) * kStride + 2 * kOutputs);
        auto out = before;
        NextTile next;
        if (fetches) next = {.rows = rows.data(), .out = out.data(), .out_stride = kStride * 4};
        {
          const TileScope scope(tiles_);
          tiles_.linear_pair(rows.data(), row_stride, left.data(), right.data(), kColumnStride, steps,
                             accumulate, out.data(), kStride, next);
        }
        for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
          const int64_t r = i / kStride, c = i % kStride;
          if (c >= 2 * kOutputs) {
            ASSERT_EQ(out[i], before[i]);
            continue;
          }
          const uint32_t* column = (c < kOutputs ? left : right).data() + c % kOutputs;
          const double expected = Dot(rows.data() + r * row_stride, column, kColumnStride, steps) +
                                  (accumulate ? before[i] : 0.0f);
          ASSERT_NEAR(out[i], expected, Bound(steps)) << "row " << r << ", column " << c;
        }
      }
    }
  }
}

// Others' products in the same thread leave tiles of other sizes, or none.
TEST_P(AmxProductsTest, ScopeReplacesWhatItFinds) {
  AmxConfig others;
  others.rows[0] = 3;
  others.row_bytes[0] = 12;
  if (is_machine_code_) {
    AmxInstructions::Configure(others);
  } else {
    amx_emulation::EmulatedInstructions::Configure(others);
  }
  const auto queries = Operand(tiles_.rows * 16), panel = Operand(16 * kPanelKeys);
  const uint32_t* const keys = panel.data();
  std::vector<float> scores(tiles_.rows * kKeyBlock), again(scores);
  for (std::vector<float>* out : {&scores, &again}) {
    const TileScope scope(tiles_);
    tiles_.scores(queries.data(), &keys, 16, 32, out->data());
  }
  EXPECT_EQ(scores, again);
  EXPECT_NEAR(scores[0], Dot(queries.data(), panel.data(), kPanelKeys, 16), Bound(16));
}

INSTANTIATE_TEST_SUITE_P(Tiles, AmxProductsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "MachineCode" : "Emulated"; });

}  // namespace
}  // namespace kvblend::kernels
