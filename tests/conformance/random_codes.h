// Weights that come as codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/host/float_convert.h"
#include "kernels/weight_source.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"

namespace kvblend::kernels {

/// Those of GGUF's files and one more, which products in 8 bits keep too; and two of neither kind.
inline constexpr QuantizedFormat kFormats[] = {
    {.bits = 4, .group = 32, .zero_point = 8, .has_minimum = false},    // Q4_0
    {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true},     // Q4_1, Q4_K
    {.bits = 5, .group = 32, .zero_point = 16, .has_minimum = false},   // Q5_0, MXFP4
    {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true},     // Q5_1, Q5_K
    {.bits = 6, .group = 16, .zero_point = 32, .has_minimum = false},   // Q6_K
    {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false},  // Q8_0, IQ4_NL, IQ4_XS
    {.bits = 4, .group = 16, .zero_point = 0, .has_minimum = true},     // Q2_K
    {.bits = 4, .group = 16, .zero_point = 4, .has_minimum = false},    // Q3_K
    {.bits = 6, .group = 32, .zero_point = 5, .has_minimum = true},
    {.bits = 8, .group = 16, .zero_point = 77, .has_minimum = true},
};
/// Those whose scales are nested.
inline constexpr QuantizedFormat kNestedFormats[] = {
    {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true, .nested = true},     // Q4_K
    {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true, .nested = true},     // Q5_K
    {.bits = 6, .group = 16, .zero_point = 32, .has_minimum = false, .nested = true},   // Q6_K
    {.bits = 4, .group = 16, .zero_point = 0, .has_minimum = true, .nested = true},     // Q2_K
    {.bits = 4, .group = 16, .zero_point = 4, .has_minimum = false, .nested = true},    // Q3_K
    {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false, .nested = true},  // IQ4_XS
};
inline constexpr size_t kCodeFormats = 8;  // those that products in 8 bits keep come first

/// Random codes, scales and minima. Scales and minima are what f16 holds, unless `any_scale`, or what it
/// holds times whole numbers where they are nested. REQUIRES: with formats that are nested, kSuperGroup
/// divides `cols`.
class RandomCodes final : public WeightSource {
 public:
  using FormatFunction = std::function<std::optional<QuantizedFormat>(int64_t row)>;

  RandomCodes(Rng& rng, int64_t rows, int64_t cols, FormatFunction format_of, bool any_scale = false)
      : format_of_(std::move(format_of)), codes_(rows), scales_(rows), minimums_(rows), nested_(rows) {
    NormalValues normal;
    const auto value = [&](float deviation) {
      const float drawn = normal(rng) * deviation;
      return any_scale ? drawn : F16ToF32(F32ToF16(drawn));
    };
    for (int64_t row = 0; row < rows; ++row) {
      const QuantizedFormat format = FormatOr(row);
      std::uniform_int_distribution<int> code(0, (1 << format.bits) - 1);
      for (int64_t c = 0; c < cols; ++c) codes_[row].push_back(static_cast<uint8_t>(code(rng)));
      if (format.nested) {
        DrawNested(rng, row, cols, [&](float deviation) { return value(deviation); });
        continue;
      }
      for (int64_t g = 0; g < cols / format.group; ++g) {
        scales_[row].push_back(value(1.0f / static_cast<float>(1 << format.bits)));
        minimums_[row].push_back(format.has_minimum ? value(0.5f) : 0);
      }
    }
  }

  double at(int64_t row, int64_t col) const {
    const QuantizedFormat format = FormatOr(row);
    const int64_t g = col / format.group;
    return double{scales_[row][g]} * (codes_[row][col] - format.zero_point) + minimums_[row][g];
  }
  /// The size of the terms that a product may be computed from, which cancel.
  double Magnitude(int64_t row, int64_t col) const {
    const QuantizedFormat format = FormatOr(row);
    const int64_t g = col / format.group;
    return std::abs(scales_[row][g]) * (codes_[row][col] + format.zero_point) + std::abs(minimums_[row][g]);
  }
  /// The largest magnitude that any code would stand for here.
  double LargestOfGroup(int64_t row, int64_t col) const {
    const QuantizedFormat format = FormatOr(row);
    const int64_t g = col / format.group;
    const double scale = scales_[row][g], minimum = minimums_[row][g];
    return std::max(std::abs(minimum - scale * format.zero_point),
                    std::abs(minimum + scale * ((1 << format.bits) - 1 - format.zero_point)));
  }
  double StepOf(int64_t row, int64_t col) const { return std::abs(scales_[row][col / FormatOr(row).group]); }
  void set_scale(int64_t row, int64_t group, float scale) { scales_[row][group] = scale; }

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    if (row == failing_row) return absl::DataLossError("a torn row");
    const QuantizedFormat format = FormatOr(row);
    for (size_t c = 0; c < out.size(); ++c) {  // rounded as GGUF's are
      const size_t g = c / format.group;
      const float product = scales_[row][g] * static_cast<float>(codes_[row][c] - format.zero_point);
      out[c] = product + minimums_[row][g];
    }
    return absl::OkStatus();
  }
  std::optional<QuantizedFormat> FormatOf(int64_t row) const override { return format_of_(row); }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    if (row == failing_row) return absl::DataLossError("a torn row");
    std::copy(codes_[row].begin(), codes_[row].end(), out.codes.begin());
    std::copy(scales_[row].begin(), scales_[row].end(), out.scales.begin());
    std::copy(minimums_[row].begin(), minimums_[row].end(), out.minimums.begin());
    const Nested& nested = nested_[row];
    const auto give = [](const auto& from, auto to) {
      if (!to.empty()) std::copy(from.begin(), from.end(), to.begin());
    };
    give(nested.scale_codes, out.nested.scale_codes);
    give(nested.minimum_codes, out.nested.minimum_codes);
    give(nested.super_scales, out.nested.super_scales);
    give(nested.super_minimums, out.nested.super_minimums);
    return absl::OkStatus();
  }

  int64_t failing_row = -1;

 private:
  // What rows that are said to be no codes are made of.
  QuantizedFormat FormatOr(int64_t row) const {
    return format_of_(row).value_or(
        QuantizedFormat{.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false});
  }

  struct Nested {
    std::vector<int8_t> scale_codes, minimum_codes;
    std::vector<float> super_scales, super_minimums;
  };
  template <typename Value>
  void DrawNested(Rng& rng, int64_t row, int64_t cols, const Value& value) {
    const QuantizedFormat format = FormatOr(row);
    Nested& nested = nested_[row];
    for (int64_t super = 0; super < cols / kSuperGroup; ++super) {
      nested.super_scales.push_back(value(1.0f / static_cast<float>(64 << format.bits)));
      nested.super_minimums.push_back(value(0.5f / 64));
    }
    std::uniform_int_distribution<int> scale(format.has_minimum ? 0 : -128, format.has_minimum ? 63 : 127),
        minimum(0, 63);
    for (int64_t g = 0; g < cols / format.group; ++g) {
      const int64_t super = g * format.group / kSuperGroup;
      nested.scale_codes.push_back(static_cast<int8_t>(scale(rng)));
      nested.minimum_codes.push_back(static_cast<int8_t>(format.has_minimum ? minimum(rng) : 0));
      scales_[row].push_back(nested.super_scales[super] * static_cast<float>(nested.scale_codes[g]));
      minimums_[row].push_back(nested.super_minimums[super] * static_cast<float>(nested.minimum_codes[g]));
    }
  }

  const FormatFunction format_of_;
  std::vector<std::vector<uint8_t>> codes_;
  std::vector<std::vector<float>> scales_, minimums_;
  std::vector<Nested> nested_;  // empty where the format is not
};

}  // namespace kvblend::kernels
