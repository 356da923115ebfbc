#include "engine/model/gguf/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/support/gguf_builder.h"

namespace kvblend::model {
namespace {

using test_support::Bytes;
using ::testing::HasSubstr;

// The oracle is the Python package `gguf`: tests/fixtures/make_gguf_dequantize.py documents the file.
TEST(DequantizeTest, EveryTypeEqualsThePythonPackageBitByBit) {
  std::ifstream file(KVBLEND_SOURCE_DIR "/tests/fixtures/gguf/dequantize.bin", std::ios::binary);
  const std::string fixture{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  size_t position = 0;
  std::set<std::string> types;
  while (position < fixture.size()) {
    uint32_t header[3] = {};
    ASSERT_LE(position + sizeof(header), fixture.size());
    std::memcpy(header, fixture.data() + position, sizeof(header));
    position += sizeof(header);
    const auto [number, num_bytes, num_elements] = header;
    ASSERT_LE(position + num_bytes + num_elements * sizeof(float), fixture.size());
    const std::string row = fixture.substr(position, num_bytes);
    position += num_bytes;
    std::vector<float> expected(num_elements);
    std::memcpy(expected.data(), fixture.data() + position, num_elements * sizeof(float));
    position += num_elements * sizeof(float);

    const auto traits = FindTensorType(number);
    ASSERT_TRUE(traits.ok()) << traits.status();
    types.emplace(traits->name);
    // From an odd address, too: rows in a file have no alignment.
    for (const size_t shift : {0, 1}) {
      const std::string shifted = std::string(shift, 'x') + row;
      std::vector<float> actual(num_elements, NAN);
      const auto status = DequantizeRow(traits->type, Bytes(shifted).subspan(shift), absl::MakeSpan(actual));
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < num_elements; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
            << traits->name << " element " << i << ": " << actual[i] << ", expected " << expected[i];
      }
    }
  }
  EXPECT_EQ(types.size(), 16u) << "the fixture should hold every type";
}

TEST(DequantizeTest, ExpandsEveryHalf) {
  std::vector<uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<float> expanded(halves.size());
  ASSERT_TRUE(
      DequantizeRow(TensorType::kF16, std::as_bytes(std::span(halves)), absl::MakeSpan(expanded)).ok());
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int fraction = static_cast<int>(bits & 1023);
    const double sign = bits & 0x8000 ? -1 : 1;
    const float actual = expanded[bits];
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
      continue;
    }
    double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = INFINITY;
    ASSERT_EQ(actual, static_cast<float>(sign * expected)) << bits;
    ASSERT_EQ(std::signbit(actual), sign < 0) << bits;
  }
}

TEST(DequantizeTest, RefusesSizesThatDoNotBelongTogether) {
  std::vector<float> out(64);
  const std::string bytes(1024, '\0');
  // Q8_0: 34 bytes make 32 elements.
  for (const auto& [num_bytes, num_elements] :
       {std::pair{33, 32}, {35, 32}, {34, 31}, {34, 64}, {0, 1}, {68, 32}}) {
    const auto status = DequantizeRow(TensorType::kQ8_0, Bytes(bytes).subspan(0, num_bytes),
                                      absl::MakeSpan(out).subspan(0, num_elements));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << num_bytes << " " << num_elements;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Q8_0"));
  }
  EXPECT_TRUE(DequantizeRow(TensorType::kQ8_0, {}, {}).ok());
}

TEST(DequantizeTest, RefusesOtherTypesByName) {
  for (const auto& [number, name] : {std::pair<uint32_t, std::string>{16, "IQ2_XXS"},
                                     {21, "IQ3_S"},
                                     {40, "NVFP4"},
                                     {4, "unknown"},
                                     {4000000000u, "4000000000"}}) {
    const auto traits = FindTensorType(number);
    EXPECT_EQ(traits.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(traits.status().message()), HasSubstr(name));
    float out = 0;
    EXPECT_FALSE(DequantizeRow(static_cast<TensorType>(number), {}, {&out, 1}).ok());
  }
}

constexpr TensorType kAllTypes[] = {
    TensorType::kF32,  TensorType::kF16,    TensorType::kBF16,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0,   TensorType::kQ5_1,   TensorType::kQ8_0,
    TensorType::kQ4_K, TensorType::kQ5_K,   TensorType::kQ6_K,   TensorType::kQ2_K,
    TensorType::kQ3_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS, TensorType::kMXFP4};

// What backends keep of a quantized row gives the very values of DequantizeRow.
TEST(DequantizeTest, CodesScalesAndMinimaMakeTheSameValues) {
  std::mt19937 rng(7);
  int quantized = 0;
  for (const TensorType type : kAllTypes) {
    const std::optional<kernels::QuantizedFormat> format = QuantizedFormatOf(type);
    if (!format.has_value()) continue;
    ++quantized;
    const TensorTypeTraits& traits = TraitsOf(type);
    SCOPED_TRACE(traits.name);
    EXPECT_EQ(traits.block_elements % format->group, 0);
    std::string row(3 * traits.block_bytes, '\0');
    for (char& byte : row) byte = static_cast<char>(rng() % 124);  // no f16 becomes an infinity or NaN
    const size_t elements = 3 * traits.block_elements, groups = elements / format->group;
    std::vector<float> values(elements), scales(groups), minimums(groups, NAN);
    std::vector<uint8_t> codes(elements);
    ASSERT_TRUE(DequantizeRow(type, Bytes(row), absl::MakeSpan(values)).ok());
    const kernels::QuantizedRow out{absl::MakeSpan(codes), absl::MakeSpan(scales), absl::MakeSpan(minimums)};
    ASSERT_TRUE(ReadQuantizedRow(type, Bytes(row), out).ok());
    for (size_t i = 0; i < elements; ++i) {
      const size_t group = i / format->group;
      ASSERT_LT(codes[i], 1 << format->bits);
      ASSERT_EQ(scales[group] * static_cast<float>(codes[i] - format->zero_point) + minimums[group],
                values[i])
          << "element " << i;
      ASSERT_TRUE(format->has_minimum || minimums[group] == 0);
    }
    // Nested formats have these parts.
    const size_t nested_groups = format->nested ? groups : 0, supers = format->nested ? elements / 256 : 0,
                 of_minima = format->has_minimum ? nested_groups : 0;
    std::vector<int8_t> scale_codes(nested_groups), minimum_codes(of_minima);
    std::vector<float> super_scales(supers), super_minimums(format->has_minimum ? supers : 0);
    kernels::QuantizedRow with_parts = out;
    with_parts.nested = {absl::MakeSpan(scale_codes), absl::MakeSpan(minimum_codes),
                         absl::MakeSpan(super_scales), absl::MakeSpan(super_minimums)};
    ASSERT_TRUE(ReadQuantizedRow(type, Bytes(row), with_parts).ok());
    for (size_t group = 0; group < nested_groups; ++group) {
      const size_t super = group * format->group / 256;
      EXPECT_EQ(super_scales[super] * static_cast<float>(scale_codes[group]), scales[group]) << group;
      if (!format->has_minimum) continue;
      EXPECT_EQ(super_minimums[super] * static_cast<float>(minimum_codes[group]), minimums[group]) << group;
    }
  }
  EXPECT_EQ(quantized, 13);
}

TEST(DequantizeTest, QuantizedRowsOfWrongSizesAreRefused) {
  std::string row(TraitsOf(TensorType::kQ6_K).block_bytes, '\0');
  std::vector<uint8_t> codes(256);
  std::vector<float> scales(16), minimums(16);
  const auto read = [&](TensorType type, size_t num_codes, size_t num_scales) {
    return ReadQuantizedRow(
        type, Bytes(row),
        {absl::MakeSpan(codes.data(), num_codes), absl::MakeSpan(scales.data(), num_scales),
         absl::MakeSpan(minimums.data(), num_scales)});
  };
  EXPECT_TRUE(read(TensorType::kQ6_K, 256, 16).ok());
  std::vector<int8_t> parts(16);
  std::vector<float> supers(2);
  kernels::QuantizedRow nested{absl::MakeSpan(codes), absl::MakeSpan(scales), absl::MakeSpan(minimums)};
  nested.nested = {absl::MakeSpan(parts.data(), 8), {}, absl::MakeSpan(supers.data(), 1), {}};
  EXPECT_THAT(std::string(ReadQuantizedRow(TensorType::kQ6_K, Bytes(row), nested).message()),
              HasSubstr("room for 8 and 0 nested scales and minima; allowed: 0, 16"));
  nested.nested = {absl::MakeSpan(parts), {}, absl::MakeSpan(supers), {}};
  EXPECT_FALSE(ReadQuantizedRow(TensorType::kQ6_K, Bytes(row), nested).ok());
  EXPECT_THAT(std::string(read(TensorType::kQ6_K, 255, 16).message()), HasSubstr("do not make 255 elements"));
  EXPECT_THAT(std::string(read(TensorType::kQ6_K, 256, 8).message()), HasSubstr("room for 8 scales"));
  EXPECT_THAT(std::string(read(TensorType::kF16, 105, 8).message()), HasSubstr("type 1"));
}

}  // namespace
}  // namespace kvblend::model
