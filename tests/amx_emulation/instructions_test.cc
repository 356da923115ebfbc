// AMX's instructions, the processor's or emulated ones, against what they are defined to do; and that the
// emulation stops what a processor would not execute.
#include "kernels/cpu/amx/instructions.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/host/float_convert.h"
#include "tests/amx_emulation/illegal_instructions.h"

namespace kvblend::kernels {
namespace {

using Amx = AmxInstructions;

AmxConfig Config(int tile, int rows, int row_bytes, const AmxConfig& others = {}) {
  AmxConfig config = others;
  config.rows[tile] = static_cast<uint8_t>(rows);
  config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  return config;
}

class AmxInstructionsTest : public testing::Test {
 protected:
  const bool emulated_ = amx_emulation::EmulateIllegalInstructions();
};

// Small integers, of which all sums are exact.
class Product {
 public:
  Product(int rows, int pairs, int columns, uint32_t seed)
      : rows_(rows), pairs_(pairs), columns_(columns), a_(rows * 2 * pairs), b_(pairs * 2 * columns) {
    std::mt19937 rng(seed);
    for (std::vector<uint16_t>* matrix : {&a_, &b_}) {
      for (uint16_t& value : *matrix) value = F32ToBf16(static_cast<float>(static_cast<int>(rng() % 17) - 8));
    }
  }
  AmxConfig config() const {
    return Config(6, pairs_, 4 * columns_, Config(4, rows_, 4 * pairs_, Config(0, rows_, 4 * columns_)));
  }
  const void* a() const { return a_.data(); }
  const void* b() const { return b_.data(); }
  int64_t a_stride() const { return 4 * pairs_; }
  int64_t b_stride() const { return 4 * columns_; }

  std::vector<float> Sums(float initial) const {
    std::vector<float> sums(rows_ * columns_, initial);
    for (int m = 0; m < rows_; ++m) {
      for (int n = 0; n < columns_; ++n) {
        for (int i = 0; i < 2 * pairs_; ++i) {  // B holds elements 2k and 2k + 1 of a column side by side
          sums[m * columns_ + n] +=
              Bf16ToF32(a_[m * 2 * pairs_ + i]) * Bf16ToF32(b_[i / 2 * 2 * columns_ + 2 * n + i % 2]);
        }
      }
    }
    return sums;
  }

 private:
  const int rows_, pairs_, columns_;
  std::vector<uint16_t> a_, b_;
};

TEST_F(AmxInstructionsTest, ProductsOfAllShapes) {
  for (const auto& [rows, pairs, columns] :
       {std::tuple{16, 16, 16}, {1, 1, 1}, {3, 16, 5}, {16, 7, 9}, {5, 2, 16}}) {
    const Product product(rows, pairs, columns, 7);
    Amx::Configure(product.config());
    Amx::Zero<0>();
    Amx::Load<4>(product.a(), product.a_stride());
    Amx::Load<6>(product.b(), product.b_stride());
    Amx::AddProducts<0, 4, 6>();
    std::vector<float> once(rows * columns), twice(rows * columns);
    Amx::Store<0>(once.data(), 4 * columns);
    Amx::AddProducts<0, 4, 6>();
    Amx::Store<0>(twice.data(), 4 * columns);
    Amx::Release();
    EXPECT_EQ(once, product.Sums(0.0f)) << rows << " " << pairs << " " << columns;
    std::transform(once.begin(), once.end(), once.begin(), [](float sum) { return 2 * sum; });
    EXPECT_EQ(twice, once);
  }
}

TEST_F(AmxInstructionsTest, SumsAreLoadedAndOtherMemoryLeftAlone) {
  const Product product(4, 16, 3, 11);
  Amx::Configure(product.config());
  std::vector<float> sums(4 * 8, 100.0f);  // rows of three, eight apart
  Amx::Load<0>(sums.data(), 32);
  Amx::Load<4>(product.a(), product.a_stride());
  Amx::Load<6>(product.b(), product.b_stride());
  Amx::AddProducts<0, 4, 6>();
  Amx::Store<0>(sums.data(), 32);
  Amx::Release();
  std::vector<float> expected(4 * 8, 100.0f);
  for (int m = 0; m < 4; ++m) std::copy_n(product.Sums(100.0f).data() + 3 * m, 3, expected.data() + 8 * m);
  EXPECT_EQ(sums, expected);
}

TEST_F(AmxInstructionsTest, ConfigurationSetsTilesToZero) {
  std::vector<float> values(256, 3.0f);
  Amx::Configure(Config(2, 16, 64));
  Amx::Load<2>(values.data(), 64);
  Amx::Configure(Config(2, 16, 64));
  Amx::Store<2>(values.data(), 64);
  Amx::Release();
  EXPECT_EQ(values, std::vector<float>(256, 0.0f));
}

// A compiler that were not told could leave out both fills, for nothing else reads them.
TEST_F(AmxInstructionsTest, CompilerKeepsAccessesToMemoryInOrder) {
  float values[16];
  AmxConfig config;
  config.rows[1] = 1;
  config.row_bytes[1] = 64;
  Amx::Configure(config);
  std::fill(values, values + 16, 3.0f);
  Amx::Load<1>(values, 64);
  std::fill(values, values + 16, 9.0f);
  Amx::Store<1>(values, 64);
  Amx::Release();
  for (const float value : values) EXPECT_EQ(value, 3.0f);
}

TEST_F(AmxInstructionsTest, SubnormalNumbersCountAsZero) {
  const uint32_t tiny = 0x00400040, one = 0x3F803F80, least = 0x00800080;  // pairs of bf16
  float sums[3];
  int i = 0;
  for (const auto& [a, b] : {std::pair{tiny, one}, {least, 0x3F003F00u}, {least, one}}) {
    Amx::Configure(Config(0, 1, 4, Config(4, 1, 4, Config(6, 1, 4))));
    Amx::Load<4>(&a, 4);
    Amx::Load<6>(&b, 4);
    Amx::AddProducts<0, 4, 6>();
    Amx::Store<0>(&sums[i++], 4);
    Amx::Release();
  }
  EXPECT_EQ(sums[0], 0.0f);
  EXPECT_EQ(sums[1], 0.0f);  // twice half of the least normal number, each of which is flushed
  EXPECT_EQ(sums[2], 0x1p-125f);
}

TEST_F(AmxInstructionsTest, ThreadsHaveTheirOwnTiles) {
  std::vector<float> values(16, 5.0f), others(16, 6.0f);
  Amx::Configure(Config(1, 1, 64));
  Amx::Load<1>(values.data(), 64);
  std::thread([&] {
    Amx::Configure(Config(1, 1, 64));
    Amx::Load<1>(others.data(), 64);
    Amx::Release();
  }).join();
  std::fill(values.begin(), values.end(), 0.0f);
  Amx::Store<1>(values.data(), 64);
  Amx::Release();
  EXPECT_EQ(values, std::vector<float>(16, 5.0f));
}

// A processor ends these programs with a signal of its own.
class AmxFaultsDeathTest : public AmxInstructionsTest {
 protected:
  AmxFaultsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::string Message(const char* message) const {
    return emulated_ ? std::string("AMX emulation: ") + message : "";
  }
  const std::vector<std::byte> memory_ = std::vector<std::byte>(1024);
};

TEST_F(AmxFaultsDeathTest, Configurations) {
  AmxConfig config = Config(0, 16, 64);
  const auto expect = [&](const AmxConfig& bad, const char* message) {
    EXPECT_DEATH(Amx::Configure(bad), Message(message));
  };
  config.palette = 2;
  expect(config, "LDTILECFG of an unknown palette");
  config = Config(0, 16, 64);
  config.reserved[5] = 1;
  expect(config, "LDTILECFG with reserved bytes");
  expect(Config(0, 17, 64), "LDTILECFG of more than 16 rows");
  expect(Config(7, 16, 68), "LDTILECFG of rows of more than 64 bytes");
  expect(Config(8, 16, 64), "LDTILECFG of more than 8 tiles");
  expect(Config(3, 0, 64), "LDTILECFG of rows without bytes");
}

TEST_F(AmxFaultsDeathTest, TilesWithoutConfiguration) {
  const auto load_after_release = [&] {
    Amx::Configure(Config(1, 16, 64));
    Amx::Release();
    Amx::Load<1>(memory_.data(), 64);
  };
  const auto other_tile = [&] {
    Amx::Configure(Config(1, 16, 64));
    Amx::Zero<2>();
  };
  EXPECT_DEATH(Amx::Zero<0>(), Message("a tile is used without a configuration"));
  EXPECT_DEATH(load_after_release(), Message("a tile is used without a configuration"));
  EXPECT_DEATH(other_tile(), Message("a tile is used that the configuration leaves out"));
}

TEST_F(AmxFaultsDeathTest, ProductsOfSizesThatDoNotFit) {
  const auto multiply = [](int a_rows, int a_bytes, int b_rows, int b_bytes) {
    Amx::Configure(Config(0, 16, 64, Config(4, a_rows, a_bytes, Config(6, b_rows, b_bytes))));
    Amx::AddProducts<0, 4, 6>();
  };
  EXPECT_DEATH(multiply(16, 60, 16, 64), Message("TDPBF16PS of a row of A"));
  EXPECT_DEATH(multiply(15, 64, 16, 64), Message("TDPBF16PS with C and A"));
  EXPECT_DEATH(multiply(16, 64, 16, 60), Message("TDPBF16PS with C and B"));
  EXPECT_DEATH(multiply(16, 62, 16, 64), Message("TDPBF16PS of rows that are no whole words"));
}

}  // namespace
}  // namespace kvblend::kernels
