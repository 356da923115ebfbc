#include "tests/amx_emulation/tile_state.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace kvblend::amx_emulation {
namespace {

struct {
  std::atomic<int64_t> products{0}, configured{0}, released{0};
} counts;

constexpr int kRows = 16, kWords = 16;
using Floats = float __attribute__((vector_size(4 * kWords)));
using Bits = uint32_t __attribute__((vector_size(4 * kWords)));

// Subnormal numbers count as zero, read and written.
void Flush(Floats& values) {
  const Bits bits = (Bits)values;  // casts of vectors leave their bits alone
  const Bits is_small = (Bits)((bits & 0x7F800000) == 0);
  values = (Floats)(bits & ~(is_small & 0x7FFFFFFF));
}

// A tile of pairs of bf16, as f32.
struct Pairs {
  Floats even[kRows], odd[kRows];
  float least = 1.0f;  // magnitude that is not 0

  void Unpack(const std::byte* words, int row) {
    Bits bits;
    std::memcpy(&bits, words, sizeof(bits));
    even[row] = (Floats)(bits << 16);
    odd[row] = (Floats)(bits & 0xFFFF0000);
    for (Floats* values : {&even[row], &odd[row]}) {
      Flush(*values);
      for (int n = 0; n < kWords; ++n) {
        const float value = std::abs((*values)[n]);
        least = std::min(least, value == 0.0f ? 1.0f : value);
      }
    }
  }
};

// sums[n] += a * b[n], each rounded once. The product of two bf16 fits into a float unless it is too small.
void MulAdd(bool exact, float a, const Floats& b, Floats& sums) {
  if (exact) {
    sums += a * b;
  } else {
    for (int n = 0; n < kWords; ++n) sums[n] = std::fma(a, b[n], sums[n]);
  }
  Flush(sums);
}

[[noreturn]] void Fail(const char* message) {
  std::fprintf(stderr, "AMX emulation: %s\n", message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace

void TileState::Configure(const std::byte* config) {
  uint8_t bytes[64];
  std::memcpy(bytes, config, sizeof(bytes));
  *this = TileState();
  if (bytes[0] == 0) return;  // palette 0: as TILERELEASE
  if (bytes[0] != 1) Fail("LDTILECFG of an unknown palette");
  if (bytes[1] != 0) Fail("LDTILECFG in the middle of an interrupted load");
  if (std::any_of(bytes + 2, bytes + 16, [](uint8_t b) { return b != 0; })) {
    Fail("LDTILECFG with reserved bytes that are not 0");
  }
  for (int i = 0; i < 16; ++i) {
    const int row_bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, rows = bytes[48 + i];
    if (i >= kNumTiles) {
      if (row_bytes != 0 || rows != 0) Fail("LDTILECFG of more than 8 tiles");
      continue;
    }
    if (row_bytes > kMaxRowBytes) Fail("LDTILECFG of rows of more than 64 bytes");
    if (rows > kMaxRows) Fail("LDTILECFG of more than 16 rows");
    if ((row_bytes == 0) != (rows == 0)) Fail("LDTILECFG of rows without bytes, or bytes without rows");
    tiles_[i].row_bytes = row_bytes;
    tiles_[i].rows = rows;
  }
  configured_ = true;
  counts.configured.fetch_add(1, std::memory_order_relaxed);
}

void TileState::Release() {
  if (configured_) counts.released.fetch_add(1, std::memory_order_relaxed);
  *this = TileState();
}

TileState::Tile& TileState::Configured(int tile) {
  if (!configured_) Fail("a tile is used without a configuration");
  if (tile >= kNumTiles || tiles_[tile].rows == 0) Fail("a tile is used that the configuration leaves out");
  return tiles_[tile];
}

void TileState::Zero(int tile) { Configured(tile).data = {}; }

void TileState::Load(int tile, const std::byte* rows, int64_t stride) {
  Tile& to = Configured(tile);
  to.data = {};
  for (int r = 0; r < to.rows; ++r) std::memcpy(to.data[r].data(), rows + r * stride, to.row_bytes);
}

void TileState::Store(int tile, std::byte* rows, int64_t stride) {
  const Tile& from = Configured(tile);
  for (int r = 0; r < from.rows; ++r) std::memcpy(rows + r * stride, from.data[r].data(), from.row_bytes);
}

TileState& TileState::OfThread() {
  thread_local TileState state;
  return state;
}

void TileState::AddProducts(int c, int a, int b) {
  counts.products.fetch_add(1, std::memory_order_relaxed);
  if (c == a || c == b || a == b) Fail("TDPBF16PS with one tile twice");
  Tile& sums = Configured(c);
  const Tile &left = Configured(a), &right = Configured(b);
  if (sums.row_bytes % 4 != 0 || left.row_bytes % 4 != 0 || right.row_bytes % 4 != 0) {
    Fail("TDPBF16PS of rows that are no whole words");
  }
  if (left.row_bytes / 4 != right.rows) Fail("TDPBF16PS of a row of A that is not as long as a column of B");
  if (sums.rows != left.rows) Fail("TDPBF16PS with C and A of different numbers of rows");
  if (sums.row_bytes != right.row_bytes) Fail("TDPBF16PS with C and B of different rows");

  Pairs in_a, in_b;
  for (int r = 0; r < kMaxRows; ++r) {
    in_a.Unpack(left.data[r].data(), r);
    in_b.Unpack(right.data[r].data(), r);
  }
  const bool exact = in_a.least * in_b.least >= std::numeric_limits<float>::min();
  for (int m = 0; m < sums.rows; ++m) {
    // Even and odd elements are summed apart, and added at the end.
    Floats even = {}, odd = {}, row;
    for (int k = 0; k < left.row_bytes / 4; ++k) {
      MulAdd(exact, in_a.even[m][k], in_b.even[k], even);
      MulAdd(exact, in_a.odd[m][k], in_b.odd[k], odd);
    }
    even += odd;
    Flush(even);
    std::memcpy(&row, sums.data[m].data(), sizeof(row));
    Flush(row);
    row += even;
    Flush(row);
    std::memcpy(sums.data[m].data(), &row, sums.row_bytes);
  }
}

Counts Executed() { return {counts.products, counts.configured, counts.released}; }

}  // namespace kvblend::amx_emulation
