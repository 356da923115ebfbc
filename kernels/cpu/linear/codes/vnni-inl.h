// AddTwo, Total and Tile of Ops (kernels-inl.h) where one instruction multiplies and adds a word's four
// codes; included within Ops.

template <int kBits>
static HWY_INLINE void AddTwo(Ints weights, Ints next_weights, Ints row, Ints next_row, Ints& sum) {
  sum = AddProducts(AddProducts(sum, weights, row), next_weights, next_row);
}
template <int kBits>
static HWY_INLINE Ints Total(Ints sum) {
  return sum;
}

template <int kBits, int kWords>
static HWY_INLINE void Tile(const uint32_t* weights, const int8_t* codes, Ints (&sums)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = ZeroInts();
  }
  for (int word = 0; word < kWords; ++word) {
    Ints columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = Load(weights + word * kPackedBlock + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Ints row = Set(WordOfCodes(codes + (r * kWords + word) * kCodesPerWord));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = AddProducts(sums[r][v], columns[v], row);
    }
  }
}
