// Products of a prompt's rows in asymmetric codes with one step and one zero point for all inputs of a group
// (code_products.h), where one instruction multiplies and adds four bytes in 32 bits (VNNI); included behind
// kernels-inl.h.
//
// With weights step * (code - zero) of a group, and activations likewise, its sum in steps of both is
//    sum of code * code - zero of the row * sum of the weights' codes - zero of the weights * sum of (the
//    row's codes - its zero)
// The last two products are one instruction on pairs of 16 bits, and what the sum of code * code is added to.
// Zeros of weights are no whole numbers (a file has a minimum in their place): both products are in
// fractions, of which 4 or 5 bits of the weights' codes leave room for 6 or 5 bits, and then rounded. That is
// exact to half a product of a unit by a unit, where a group's activations are rounded to half a unit times
// 32 codes.

// Of AVX-512's 32 registers sums of a group and totals take 24. Of 16 registers sums take 12, and totals lie
// in memory.
constexpr int kWholeRows = Ops::kPairRows, kWholeVectors = Ops::kVectors;
// As in wide-inl.h, what a tile reads of the weights lies in one piece.
constexpr int64_t kWholeWidth = kWholeVectors * Ops::kLanes;
static_assert(kPackedBlock % kWholeWidth == 0 && kWholeWidth % kColumnOutputs == 0);
constexpr int kWholeWords = int{AsymmetricWholeGroup::kInputs / kCodesPerWord};
constexpr int64_t kWholeBlockWords = WholeGroupRows::BlockWords(AsymmetricWholeGroup::kInputs);

template <int kBits>
constexpr int kFractionBits = kBits <= 4 ? 6 : 5;
template <int kBits>
constexpr int kLargestCodeSum = AsymmetricWholeGroup::kInputs*((1 << kBits) - 1);
static_assert(kLargestCodeSum<4> << kFractionBits<4> <= INT16_MAX);
static_assert(kLargestCodeSum<AsymmetricWholeGroup::kMostWeightBits> << kFractionBits<
                  AsymmetricWholeGroup::kMostWeightBits> <=
              INT16_MAX);
// The largest zero of weights, in steps, whose fractions fit into 16 bits.
template <int kBits>
constexpr float kLargestZero = static_cast<float>((INT16_MAX >> kFractionBits<kBits>)-1);

// For groups whose weights are so alike that their zero is beyond kLargestZero: coarser codes, relative to
// the weights still as exact as bf16. value = step * code + minimum. codes: the output's, of kWholeWords
// words a width apart
template <int kBits>
void MakeCoarser(uint32_t* codes, float& step, float minimum) {
  const float coarser = std::copysign(std::abs(minimum) / kLargestZero<kBits>, step), ratio = step / coarser;
  for (int word = 0; word < kWholeWords; ++word) {
    uint32_t& bytes = codes[word * kWholeWidth];
    uint32_t rounded = 0;
    for (int byte = 0; byte < kCodesPerWord; ++byte) {
      const auto code = static_cast<float>(bytes >> (8 * byte) & 0xFF);
      // NOLINTNEXTLINE(bugprone-incorrect-roundings): of numbers below 256, for coarse codes
      rounded |= static_cast<uint32_t>(code * ratio + 0.5f) << (8 * byte);
    }
    bytes = rounded;
  }
  step = coarser;
}

template <int kUpperBits, int kBits>
void ExpandWholeGroups(const QuantizedColumn& column, const BlockCodes& out) {
  const Ops::Floats zero_point = Ops::SetFloats(ZeroPointOf(column.format)),
                    fractions = Ops::SetFloats(1 << kFractionBits<kBits>);
  const Ops::Ints ones = Ops::Set(0x01010101);
  uint32_t* target = out.codes;
  for (int64_t group = 0; group < column.chunks; ++group, target += kWholeBlockWords * kWholeWidth) {
    ExpandChunk<kUpperBits, kWholeWidth>(column, group, target);
    float *steps = out.steps + group * kPackedBlock, *zeros = out.minimums + group * kPackedBlock;
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      const GroupScales scales = ScalesOf(column, group, lane, zero_point);
      Ops::StoreFloats(scales.step, steps + lane);
      Ops::StoreFloats(scales.minimum, zeros + lane);
    }
    for (int64_t lane = 0; lane < kColumnOutputs; ++lane) {
      const float minimum = zeros[lane];
      if (std::abs(minimum) > kLargestZero<kBits> * std::abs(steps[lane])) {
        MakeCoarser<kBits>(target + lane, steps[lane], minimum);
      }
      zeros[lane] = steps[lane] == 0.0f ? 0.0f : minimum / steps[lane];
    }
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      Ops::Ints sums = Ops::ZeroInts();
      for (int word = 0; word < kWholeWords; ++word) {
        sums = Ops::AddProducts(sums, Ops::Load(target + word * kWholeWidth + lane), ones);
      }
      const Ops::Ints zero = Ops::ToInts(Ops::Mul(Ops::LoadFloats(zeros + lane), fractions));
      Ops::Store(Ops::Or(Ops::ShiftLeft32(sums, kFractionBits<kBits>), Ops::ShiftLeft32(zero, 16)),
                 target + kWholeWords * kWholeWidth + lane);
    }
  }
}

void ExpandWhole(const QuantizedColumn& column, int64_t, const BlockCodes& out) {
  auto* expand = out.bits <= 4              ? &ExpandWholeGroups<0, 4>
                 : column.upper_bits() == 0 ? &ExpandWholeGroups<0, 5>
                                            : &ExpandWholeGroups<1, 5>;
  expand(column, out);
}

// block, out: of the first output
template <int kBits>
void MultiplyWholeVectors(const WholeGroupRows& rows, const BlockCodes& block, int64_t first_group,
                          int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = kWholeRows, kVectors = kWholeVectors;
  Ops::Floats totals[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] = accumulate ? Ops::LoadFloats(out + r * out_stride + v * Ops::kLanes) : Ops::Zero();
    }
  }
  const Ops::Ints half = Ops::Set(1 << (kFractionBits<kBits> - 1));
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    const uint32_t* weights = block.codes + group * kWholeBlockWords * kWholeWidth;
    const AsymmetricWholeGroup* codes = rows.codes + group * kRows;
    Ops::Ints sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      const Ops::Ints zeros = Ops::Set(WordOfCodes(codes[r].zeros));
      for (int v = 0; v < kVectors; ++v) {
        const Ops::Ints products =
            Ops::AddPairs(half, Ops::Load(weights + kWholeWords * kWholeWidth + v * Ops::kLanes), zeros);
        sums[r][v] = Ops::ShiftRightSigned32(products, kFractionBits<kBits>);
      }
    }
#pragma GCC unroll 8
    for (int word = 0; word < kWholeWords; ++word) {
      Ops::Ints columns[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        columns[v] = Ops::Load(weights + word * kWholeWidth + v * Ops::kLanes);
      }
      for (int r = 0; r < kRows; ++r) {
        const Ops::Ints row = Ops::Set(WordOfCodes(codes[r].codes + word * kCodesPerWord));
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = Ops::AddProducts(sums[r][v], columns[v], row);
          Ops::Settle(sums[r][v]);
        }
      }
    }
    Ops::Floats steps[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      steps[v] = Ops::LoadFloats(block.steps + group * kPackedBlock + v * Ops::kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const Ops::Floats step = Ops::SetFloats(rows.steps[group * kRows + r]);
      for (int v = 0; v < kVectors; ++v) {
        totals[r][v] = Ops::MulAdd(Ops::ToFloats(sums[r][v]), Ops::Mul(step, steps[v]), totals[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Ops::StoreFloats(totals[r][v], out + r * out_stride + v * Ops::kLanes);
    }
  }
}

void MultiplyWhole(const WholeGroupRows& rows, const BlockCodes& block, int64_t first_group,
                   int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  const auto multiply = block.bits <= 4 ? &MultiplyWholeVectors<4> : &MultiplyWholeVectors<5>;
  for (int64_t output = 0; output < kPackedBlock; output += kWholeWidth) {
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}

constexpr CodeKernels kKernelsAndWholeGroups = [] {
  CodeKernels kernels = kKernels;
  kernels.whole_groups = {.rows = kWholeRows,
                          .width = kWholeWidth,
                          .quantize = &QuantizeWholeGroups,
                          .expand = &ExpandWhole,
                          .multiply = &MultiplyWhole};
  return kernels;
}();
