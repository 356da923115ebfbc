// cp.async, ldmatrix and mma.sync, with the fragment layouts of the PTX ISA (sections "ldmatrix" and "Matrix
// Fragments for mma.m16n8k16 with floating point type").
#include "kernels/cuda/device/device.h"

namespace kvblend::kernels::cuda {
namespace {

using cuda_emulation::Collective;
using cuda_emulation::LaneSlot;

template <typename T>
T Read(const LaneSlot& slot) {
  T value;
  std::memcpy(&value, slot.bytes, sizeof(value));
  return value;
}

struct LoadMatrixSlot {
  uint32_t address;
  uint32_t out[4];
};

template <bool kTransposed>
void CombineLoadMatrix(LaneSlot* slots) {
  uint16_t rows[32][8];  // row r of matrix m at 8 m + r
  for (int lane = 0; lane < 32; ++lane) {
    auto& emulator = Emulator();
    emulator.shared().ReadByWarp(Warp(), emulator.warp_epoch(), Read<LoadMatrixSlot>(slots[lane]).address,
                                 rows[lane], 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto slot = Read<LoadMatrixSlot>(slots[lane]);
    for (int m = 0; m < 4; ++m) {
      const int row = lane / 4, col = lane % 4 * 2;
      const uint16_t low = kTransposed ? rows[8 * m + col][row] : rows[8 * m + row][col];
      const uint16_t high = kTransposed ? rows[8 * m + col + 1][row] : rows[8 * m + row][col + 1];
      slot.out[m] = uint32_t{low} | uint32_t{high} << 16;
    }
    std::memcpy(slots[lane].bytes, &slot, sizeof(slot));
  }
}

template <bool kTransposed>
void LoadMatrix(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index, Site site) {
  LoadMatrixSlot slot{matrix.Address(index, 8), {}};
  CheckAligned16("LoadMatrix4", slot.address);
  const LaneSlot* slots = Emulator().WarpCollective(Collective::kLoadMatrix, site, &slot, sizeof(slot),
                                                    &CombineLoadMatrix<kTransposed>);
  slot = Read<LoadMatrixSlot>(slots[Lane()]);
  for (int m = 0; m < 4; ++m) out[m] = slot.out[m];
}

struct MmaSlot {
  float d[4];
  uint32_t a[4];
  uint32_t b[2];
};

template <bool kBf16>
void CombineMma(LaneSlot* slots) {
  const auto value = [](uint32_t reg, int half) {
    const auto bits = static_cast<uint16_t>(reg >> (16 * half));
    return kBf16 ? Bf16ToF32(bits) : F16ToF32(bits);
  };
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto slot = Read<MmaSlot>(slots[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      a[group][pair + half] = value(slot.a[0], half);
      a[group + 8][pair + half] = value(slot.a[1], half);
      a[group][pair + 8 + half] = value(slot.a[2], half);
      a[group + 8][pair + 8 + half] = value(slot.a[3], half);
      b[pair + half][group] = value(slot.b[0], half);
      b[pair + 8 + half][group] = value(slot.b[1], half);
      d[group][pair + half] = slot.d[half];
      d[group + 8][pair + half] = slot.d[2 + half];
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sum[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) sum[col] += a[row][k] * b[k][col];
    }
    for (int col = 0; col < 8; ++col) d[row][col] += sum[col];
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, pair = lane % 4 * 2;
    const float out[4] = {d[group][pair], d[group][pair + 1], d[group + 8][pair], d[group + 8][pair + 1]};
    std::memcpy(slots[lane].bytes, out, sizeof(out));
  }
}

template <bool kBf16>
void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  const MmaSlot slot{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  const LaneSlot* slots =
      Emulator().WarpCollective(Collective::kMma, site, &slot, sizeof(slot), &CombineMma<kBf16>);
  std::memcpy(d, slots[Lane()].bytes, sizeof(d));
}

}  // namespace

void CheckAligned16(const char* operation, uintptr_t address) {
  if (address % 16 != 0)
    cuda_emulation::Fail(std::string(operation) + " of an address that is no multiple of 16");
}

void CopyAsync16(SharedArray<uint16_t> target, int index, const void* source, bool valid) {
  const uint32_t offset = target.Address(index, 8);
  CheckAligned16("CopyAsync16 to", offset);
  if (valid) CheckAligned16("CopyAsync16 from", reinterpret_cast<uintptr_t>(source));
  Emulator().StartCopy(offset, source, valid ? 16 : 0);
}

void LoadMatrix4(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index, Site site) {
  LoadMatrix<false>(out, matrix, index, site);
}
void LoadMatrix4Transposed(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index, Site site) {
  LoadMatrix<true>(out, matrix, index, site);
}
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  Mma<true>(d, a, b0, b1, site);
}
void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  Mma<false>(d, a, b0, b1, site);
}

}  // namespace kvblend::kernels::cuda
