#include "kernels/cuda/runtime/correction_tiles.h"

#include "kernels/host/float_convert.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int64_t kLanes = 32;

// `value`: of (tile, n, j, word, half of the word).
template <typename Value>
std::vector<uint32_t> Tiles(const KvCorrectionSpec& spec, const Value& value) {
  const int64_t num_tiles = 2 * spec.cols / kTileChannels;
  std::vector<uint32_t> words;
  words.reserve(num_tiles * kLanes * kTileWords);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      for (int64_t word = 0; word < kTileWords; ++word) {
        const auto half = [&](int64_t high) -> uint32_t {
          return F32ToBf16(value(tile, lane / 4, lane % 4, word, high));
        };
        words.push_back(half(0) | half(1) << 16);
      }
    }
  }
  return words;
}

}  // namespace

bool HasTiles(const KvCorrectionSpec& spec) {
  return spec.rank > 0 && spec.rank <= kTileRank && spec.cols % kTileChannels == 0;
}

std::vector<uint32_t> DownTiles(const KvCorrectionSpec& spec) {
  return Tiles(spec, [&](int64_t tile, int64_t n, int64_t j, int64_t word, int64_t high) {
    const int64_t step = word / 4, t = word / 2 % 2, h = word % 2;
    const int64_t channel = tile * kTileChannels + 8 * j + 4 * step + 2 * h + high, r = 8 * t + n;
    return r < spec.rank ? spec.down[channel * spec.rank + r] : 0.0f;
  });
}

std::vector<uint32_t> UpTiles(const KvCorrectionSpec& spec) {
  return Tiles(spec, [&](int64_t tile, int64_t n, int64_t j, int64_t word, int64_t high) {
    const int64_t t = word / 2, h = word % 2;
    const int64_t channel = tile * kTileChannels + 8 * (n / 2) + 2 * t + n % 2, r = 2 * j + 8 * h + high;
    return r < spec.rank ? spec.up[r * 2 * spec.cols + channel] : 0.0f;
  });
}

}  // namespace kvblend::kernels::cuda
