// Products of many rows of activations in 16 bits (code_products.h); included by kernels-inl.h. A word is a
// pair of neighbouring inputs. Weights are -128 .. 255, as the products in 8 bits have them, so that groups
// have the same sums, and activations at most 32,767 in magnitude, so that these stay below 2^28.

template <int kUpperBits>
void ExpandPairPlanes(const QuantizedColumn& column, const BlockCodes& out) {
  uint32_t* target = out.codes;
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
    for (int quad = 0; quad < 4; ++quad, target += 4 * kPackedBlock) {
      for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
        Ops::Ints first, second;  // bytes of inputs 0 4 1 5 and 2 6 3 7
        UnpackQuad<kUpperBits>(planes + lane, quad, first, second);
        Ops::Store(EvenBytes(first), target + lane);
        Ops::Store(EvenBytes(second), target + kPackedBlock + lane);
        Ops::Store(OddBytes(first), target + 2 * kPackedBlock + lane);
        Ops::Store(OddBytes(second), target + 3 * kPackedBlock + lane);
      }
    }
  }
}

void ExpandPairs(const QuantizedColumn& column, int64_t group, const BlockCodes& out) {
  switch (column.upper_bits()) {
    case 0:
      ExpandPairPlanes<0>(column, out);
      break;
    case 1:
      ExpandPairPlanes<1>(column, out);
      break;
    case 2:
      ExpandPairPlanes<2>(column, out);
      break;
    default:
      ExpandPairPlanes<4>(column, out);
  }
  ExpandScales(column, group, out);
}

// sums = the products of one group. weights: [kWords][kWidth], codes: [kPairRows][kWords *
// RowPairs::kPerWord]
template <int kWords, int64_t kWidth>
HWY_INLINE void PairTile(const uint32_t* weights, const int16_t* codes,
                         Ops::Ints (&sums)[Ops::kPairRows][Ops::kPairVectors]) {
  for (auto& row : sums) {
    for (Ops::Ints& sum : row) sum = Ops::ZeroInts();
  }
  for (int word = 0; word < kWords; ++word) {
    Ops::Ints columns[Ops::kPairVectors];
    for (int v = 0; v < Ops::kPairVectors; ++v) {
      columns[v] = Ops::Load(weights + word * kWidth + v * Ops::kLanes);
    }
    for (int r = 0; r < Ops::kPairRows; ++r) {
      const Ops::Ints row = Ops::Set(WordOfCodes(codes + (r * kWords + word) * RowPairs::kPerWord));
      for (int v = 0; v < Ops::kPairVectors; ++v) sums[r][v] = Ops::AddPairs(sums[r][v], columns[v], row);
    }
  }
}

HWY_INLINE void ClearPairTile(float* out, int64_t out_stride) {
  for (int r = 0; r < Ops::kPairRows; ++r) {
    std::memset(out + r * out_stride, 0, Ops::kPairVectors * Ops::kLanes * sizeof(float));
  }
}

// block, out: of the first output
template <int kWords>
void MultiplyPairVectors(const RowPairs& rows, const BlockCodes& block, int64_t first_group,
                         int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = Ops::kPairRows, kVectors = Ops::kPairVectors;
  if (!accumulate) ClearPairTile(out, out_stride);
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    Ops::Ints products[kRows][kVectors];
    PairTile<kWords, kPackedBlock>(block.codes + group * kWords * kPackedBlock,
                                   rows.codes + group * kRows * kWords * RowPairs::kPerWord, products);
    GroupScales scales[kVectors];
    for (int v = 0; v < kVectors; ++v) scales[v] = ScalesOf(block, group, v);
    // Totals lie in the output meanwhile: the registers are full of products.
    for (int r = 0; r < kRows; ++r) {
      const float step = rows.steps[group * kRows + r], sum = rows.sums[group * kRows + r];
      for (int v = 0; v < kVectors; ++v) {
        float* total = out + r * out_stride + v * Ops::kLanes;
        Ops::StoreFloats(
            AddGroup(Ops::ToFloats(products[r][v]), scales[v], step, sum, Ops::LoadFloats(total)), total);
      }
    }
  }
}

void MultiplyPairs(const RowPairs& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                   bool accumulate, float* out, int64_t out_stride) {
  constexpr int64_t kOutputs = Ops::kPairVectors * Ops::kLanes;
  const auto multiply = rows.group == 32 ? &MultiplyPairVectors<16> : &MultiplyPairVectors<8>;
  for (int64_t output = 0; output < kPackedBlock; output += kOutputs) {
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}
