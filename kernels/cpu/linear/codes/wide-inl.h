// Products of a prompt's rows in 16 bits, with steps for wide groups of inputs (code_products.h); included by
// kernels-inl.h. A word is a pair of neighbouring inputs.

// The weights that a tile reads of a wide group lie in one piece. Interleaved with other tiles' they would
// share a quarter of the sets of the first-level cache.
constexpr int64_t kWideWidth = Ops::kPairVectors * Ops::kLanes;

// Turns the codes of a group into those of its wide group.
struct WideScales {
  Ops::Floats scale, offset;
};

HWY_INLINE Ops::Ints WidePair(Ops::Ints pair, const WideScales& scales) {
  const auto wide = [&](Ops::Ints code) {
    return Ops::ToInts(Ops::MulAdd(Ops::ToFloats(code), scales.scale, scales.offset));
  };
  const Ops::Ints first = wide(Ops::ShiftRightSigned32(Ops::ShiftLeft32(pair, 16), 16)),
                  second = wide(Ops::ShiftRightSigned32(pair, 16));
  return Ops::Or(Ops::And(first, Ops::Set(0xFFFF)), Ops::ShiftLeft32(second, 16));
}

// The codes of 32 inputs. scales: of the chunk's first and second half
template <int kUpperBits>
HWY_INLINE void ExpandWideChunk(const uint32_t* planes, const WideScales (&scales)[2], uint32_t* target) {
  for (int quad = 0; quad < 4; ++quad, target += 4 * kWideWidth) {
    Ops::Ints first, second;  // bytes of inputs 0 4 1 5 and 2 6 3 7
    UnpackQuad<kUpperBits>(planes, quad, first, second);
    const WideScales& of_quad = scales[quad / 2];
    Ops::Store(WidePair(EvenBytes(first), of_quad), target);
    Ops::Store(WidePair(EvenBytes(second), of_quad), target + kWideWidth);
    Ops::Store(WidePair(OddBytes(first), of_quad), target + 2 * kWideWidth);
    Ops::Store(WidePair(OddBytes(second), of_quad), target + 3 * kWideWidth);
  }
}

template <int kUpperBits>
void ExpandWideLanes(const QuantizedColumn& column, int64_t lane, int64_t group, const BlockCodes& out) {
  constexpr bool kSigned = Ops::kSignedBytes && kUpperBits == 4;
  const Ops::Floats smallest_code = Ops::SetFloats(kSigned ? -128.0f : 0.0f),
                    largest_code = Ops::SetFloats(kSigned ? 127.0f : (1 << (4 + kUpperBits)) - 1.0f),
                    largest_wide = Ops::SetFloats(kLargestWideWeight),
                    zero_point = Ops::SetFloats(ZeroPointOf(column.format));
  const int64_t scales_per_chunk = kChunkInputs / column.format.group, group_chunks = group / kChunkInputs;
  for (int64_t begin = 0, wide = 0; begin < column.chunks; begin += group_chunks, ++wide) {
    const int64_t end = std::min(begin + group_chunks, column.chunks);
    Ops::Floats largest = Ops::Zero(), not_finite = Ops::Zero();  // NaN where a value is not finite
    for (int64_t scale = begin * scales_per_chunk; scale < end * scales_per_chunk; ++scale) {
      const GroupScales scales = ScalesOf(column, scale, lane, zero_point);
      for (const Ops::Floats code : {smallest_code, largest_code}) {
        const Ops::Floats value = Ops::MulAdd(scales.step, code, scales.minimum);
        largest = Ops::MaxMagnitude(largest, value);
        not_finite = Ops::MulAdd(value, Ops::Zero(), not_finite);
      }
    }
    const Ops::Floats step = Ops::MulAdd(largest, Ops::SetFloats(1.0f / kLargestWideWeight), not_finite);
    Ops::StoreFloats(step, out.steps + wide * kPackedBlock + lane);
    const Ops::Floats inverse = Ops::DivOrZero(largest_wide, largest);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      WideScales scales[2];
      for (int half = 0; half < 2; ++half) {
        const GroupScales values =
            ScalesOf(column, chunk * scales_per_chunk + half * (scales_per_chunk - 1), lane, zero_point);
        scales[half] = {Ops::Mul(values.step, inverse), Ops::Mul(values.minimum, inverse)};
      }
      const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
      ExpandWideChunk<kUpperBits>(planes + lane, scales,
                                  out.codes + chunk * kChunkInputs / 2 * kWideWidth + lane);
    }
  }
}

void ExpandWide(const QuantizedColumn& column, int64_t group, const BlockCodes& out) {
  for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
    switch (column.upper_bits()) {
      case 0:
        ExpandWideLanes<0>(column, lane, group, out);
        break;
      case 1:
        ExpandWideLanes<1>(column, lane, group, out);
        break;
      case 2:
        ExpandWideLanes<2>(column, lane, group, out);
        break;
      default:
        ExpandWideLanes<4>(column, lane, group, out);
    }
  }
  const int64_t inputs = column.chunks * kChunkInputs;
  for (int64_t word = inputs / 2; word < RoundUp(inputs, group) / 2; ++word) {
    std::memset(out.codes + word * kWideWidth, 0, kColumnOutputs * sizeof(uint32_t));
  }
}

// block, out: of the first output
template <int kWords>
void MultiplyWideVectors(const WideRows& rows, const BlockCodes& block, int64_t first_group,
                         int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = Ops::kPairRows, kVectors = Ops::kPairVectors;
  if (!accumulate) ClearPairTile(out, out_stride);
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    Ops::Ints products[kRows][kVectors];
    PairTile<kWords, kWideWidth>(
        block.codes + group * kWords * kWideWidth,
        reinterpret_cast<const int16_t*>(rows.codes) + group * kRows * kWords * WideRows::kPerWord, products);
    Ops::Floats steps[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      steps[v] = Ops::LoadFloats(block.steps + group * kPackedBlock + v * Ops::kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const Ops::Floats step = Ops::SetFloats(rows.steps[group * kRows + r]);
      for (int v = 0; v < kVectors; ++v) {
        float* total = out + r * out_stride + v * Ops::kLanes;
        const Ops::Floats scaled = Ops::Mul(Ops::ToFloats(products[r][v]), steps[v]);
        Ops::StoreFloats(Ops::MulAdd(scaled, step, Ops::LoadFloats(total)), total);
      }
    }
  }
}

template <int... kChunks>
constexpr auto WideProducts(std::integer_sequence<int, kChunks...>) {
  return std::array{&MultiplyWideVectors<(kChunks + 1) * int{kChunkInputs} / 2>...};
}

void MultiplyWide(const WideRows& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                  bool accumulate, float* out, int64_t out_stride) {
  static constexpr auto kByChunks =
      WideProducts(std::make_integer_sequence<int, int{kMostWideInputs / kChunkInputs}>());
  const auto multiply = kByChunks[rows.group / kChunkInputs - 1];
  for (int64_t output = 0; output < kPackedBlock; output += Ops::kPairVectors * Ops::kLanes) {
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}
