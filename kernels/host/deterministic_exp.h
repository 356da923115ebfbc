// exp() made of additions and multiplications alone, so that every IEEE machine gives the same bits; the C
// library's differs between systems in the last place, which would make a seeded draw depend on the machine.
// Translation units that include this are compiled with -ffp-contract=off.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace kvblend::kernels {

constexpr double InverseFactorial(int n) {
  double factorial = 1;  // exact in double up to 22!
  for (int i = 2; i <= n; ++i) factorial *= i;
  return 1 / factorial;
}
inline constexpr std::array<double, 14> kInverseFactorials = [] {
  std::array<double, 14> values = {};
  for (int n = 0; n < 14; ++n) values[n] = InverseFactorial(n);
  return values;
}();

/// e^x for x <= 0, within 2 units in the last place; 0 below -708, where doubles lose precision.
/// REQUIRES: x is not NaN.
inline double DeterministicExp(double x) {
  if (x < -708.0) return 0.0;
  constexpr double kLog2E = 1.4426950408889634;
  // ln 2 in two parts; the first has so few bits that k * kLn2High is exact.
  constexpr double kLn2High = 6.93147180369123816490e-01;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  // Adding 1.5 * 2^52 rounds to an integer.
  constexpr double kRounder = 6755399441055744.0;
  const double k = (x * kLog2E + kRounder) - kRounder;
  const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= ln(2) / 2
  // Taylor's series by Horner's rule: the first term left out is below r^14 / 14! < 5e-18.
  double sum = kInverseFactorials[13];
  for (int n = 12; n >= 0; --n) sum = sum * r + kInverseFactorials[n];
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(k) + 1023);  // k >= -1022
  return sum * std::bit_cast<double>(exponent << 52);
}

}  // namespace kvblend::kernels
