#include "kernels/cpu/attention/task.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

template <typename Body>
void AttentionTaskRunner::ForEachBlock(const Body& body) const {
  int64_t first_tile = 0;  // tiles before it see no key from this block on
  for (int64_t key = task_.key_begin; key < task_.key_end; key += kKeyBlock) {
    const int64_t end = std::min(key + kKeyBlock, task_.key_end);
    while (first_tile < queries_.num_tiles() && queries_.KeysOfTile(first_tile).end <= key) ++first_tile;
    for (int64_t tile = first_tile; tile < queries_.num_tiles(); ++tile) {
      const VisibleKeys seen = queries_.KeysOfTile(tile);
      if (seen.begin >= end) break;  // later tiles do not see the block either
      body(tile, key, std::min(end, seen.end) - key);
    }
  }
}

void AttentionTaskRunner::Run() {
  const int64_t rows = queries_.padded_products();
  words_ = ThreadScratch<uint32_t>(ScratchSlot::kQuery, queries_.words());
  scores_ = ThreadScratch<float>(ScratchSlot::kScores, tiles_.rows * kKeyBlock);
  // In f32 the probabilities overwrite the scores.
  probabilities_ = tiles_.dtype == DataType::kF32
                       ? reinterpret_cast<uint32_t*>(scores_)
                       : ThreadScratch<uint32_t>(ScratchSlot::kProbabilities, tiles_.rows * kKeyBlock / 2);
  output_ = task_.partial != nullptr ? task_.partial
                                     : ThreadScratch<float>(ScratchSlot::kOutput, rows * (columns_ + 2));
  max_ = output_ + rows * columns_;
  sum_ = max_ + rows;
  std::fill(output_, output_ + rows * columns_, 0.0f);
  std::fill(max_, max_ + rows, -std::numeric_limits<float>::infinity());
  std::fill(sum_, sum_ + rows, 0.0f);
  queries_.Gather(task_.unit->kv_head, words_);
  const TileScope scope(tiles_);
  ForEachBlock([&](int64_t tile, int64_t key, int64_t num_keys) { AddBlock(tile, key, num_keys); });
  if (task_.partial != nullptr) return;
  for (int64_t r = 0; r < queries_.num_products(); ++r) Write(r, output_ + r * columns_, max_[r], sum_[r]);
}

void AttentionTaskRunner::AddBlock(int64_t tile, int64_t key, int64_t num_keys) {
  const KvUnit& unit = *task_.unit;
  const int64_t keys = tiles_.KeysOfProduct(num_keys), first = tile * tiles_.rows;
  if (task_.kept != nullptr) {
    probabilities_ = Kept(tile, Block(key));
    if (tiles_.dtype == DataType::kF32) scores_ = reinterpret_cast<float*>(probabilities_);
  }
  const int64_t panel = (key - unit.begin) / kPanelKeys;
  tiles_.scores(words_ + first * queries_.steps(), unit.keys + panel, queries_.steps(), keys, scores_);
  args_.CapBlock(scores_, tiles_.rows, keys);
  VisibleKeys visible[kMaxTileRows];
  queries_.KeysOfBlock(tile, key, num_keys, visible);
  float alphas[kMaxTileRows];
  for (int64_t r = 0; r < tiles_.rows; ++r) {
    alphas[r] = 1.0f;
    uint32_t* probabilities = probabilities_ + r * tiles_.ProbabilityWords(kKeyBlock);
    if (visible[r].begin < visible[r].end) {
      alphas[r] = tiles_.softmax(scores_ + r * kKeyBlock, visible[r], keys, max_ + first + r,
                                 sum_ + first + r, probabilities);
    } else {
      std::fill(probabilities, probabilities + tiles_.ProbabilityWords(keys), 0u);
    }
  }
  tiles_.add_values(probabilities_, unit.values + panel, tiles_.Steps(keys), columns_, alphas,
                    output_ + first * columns_);
  if (task_.kept_max != nullptr) std::copy_n(max_ + first, tiles_.rows, KeptMax(tile, Block(key)));
}

void AttentionTaskRunner::Merge(int64_t num_parts) const {
  const int64_t rows = queries_.padded_products(), part_floats = PartialFloats();
  float* merged = ThreadScratch<float>(ScratchSlot::kOutput, columns_);
  for (int64_t r = 0; r < queries_.num_products(); ++r) {
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t p = 0; p < num_parts; ++p) {
      max = std::max(max, task_.partial[p * part_floats + rows * columns_ + r]);
    }
    std::fill(merged, merged + columns_, 0.0f);
    for (int64_t p = 0; p < num_parts; ++p) {
      const float* part = task_.partial + p * part_floats;
      const float weight = std::exp2(part[rows * columns_ + r] - max);
      sum += part[rows * columns_ + rows + r] * weight;
      simd::AddScaledRow(part + r * columns_, weight, merged, args_.pages.head_dim);
    }
    Write(r, merged, max, sum);
  }
}

void AttentionTaskRunner::SumMass(absl::Span<const AttentionTask> parts) const {
  // 2^(score - log_sum) is a row's probability over the number of heads.
  float* log_sums = ThreadScratch<float>(ScratchSlot::kOutput, queries_.padded_products());
  for (int64_t r = 0; r < queries_.num_products(); ++r) {
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (const AttentionTask& part : parts) max = std::max(max, PartMax(part)[r]);
    for (const AttentionTask& part : parts) sum += PartSum(part)[r] * std::exp2(PartMax(part)[r] - max);
    log_sums[r] = args_.LogMassSum(queries_.head(task_.unit->kv_head, r), max, sum);
  }
  std::fill_n(task_.mass, MassFloats(), 0.0f);
  ForEachBlock([&](int64_t tile, int64_t key, int64_t num_keys) {
    const int64_t first = tile * tiles_.rows;
    const int64_t count = std::min(tiles_.rows, queries_.num_products() - first);
    const float* max = KeptMax(tile, Block(key));
    float weights[kMaxTileRows];
    for (int64_t r = 0; r < count; ++r) weights[r] = std::exp2(max[r] - log_sums[first + r]);
    tiles_.add_weighted(Kept(tile, Block(key)), weights, count, RoundUp(num_keys, kKeyStep),
                        task_.mass + (key - task_.key_begin));
  });
}

void AttentionTaskRunner::Write(int64_t product, const float* values, float max, float sum) const {
  const int64_t head_dim = args_.pages.head_dim, head = queries_.head(task_.unit->kv_head, product);
  std::byte* target = static_cast<std::byte*>(out_.data) +
                      (queries_.row(product) * out_.row_stride + head * head_dim) * SizeOf(out_.dtype);
  simd::ScaleRow(values, 1.0f / args_.Denominator(head, max, sum), target, out_.dtype, head_dim);
}

}  // namespace kvblend::kernels
