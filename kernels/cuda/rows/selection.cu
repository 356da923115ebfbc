// SelectTopK and MassScores: one block ranks all scores of a prompt, which are few (one per token).
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/rows/ranking.h"

namespace kvblend::kernels::cuda {
namespace {

struct SelectTopKParams {
  const float* scores;
  int32_t n;
  int32_t k;
  int32_t* out;
};

KVBLEND_KERNEL(kRankThreads, 2) SelectTopKKernel(SelectTopKParams p) {
  SharedArena arena;
  const RankScratch scratch = RankScratch::Take(arena);
  const auto key = [&](int i) {
    const float score = p.scores[i];
    return OrderedKey(score == score ? score : FloatFromBits(0xFF800000u));  // NaN counts as -infinity
  };
  const Highest highest = FindHighest(scratch, p.n, key, p.k);
  Collect(
      scratch, p.n, [&](int i) { return highest.Contains(key(i), i); },
      [&](int slot, int i) { p.out[slot] = i; });
}

struct MassScaleParams {
  ConstMatrixView mass;
  const ColumnRange* counted;
  int32_t num_counted;
  float* scale;
};

// A warp takes a row. Sums in double one by one, which is the definition; rows are a model's layers and run
// beside each other.
KVBLEND_KERNEL(kWarpSize, 1) MassScaleKernel(MassScaleParams p) {
  const float* row = static_cast<const float*>(p.mass.data) + BlockX() * p.mass.row_stride;
  double total = 0;
  for (int r = 0; r < p.num_counted; ++r) {
    const ColumnRange range = p.counted[r];
    double sum = 0;
    for (int first = range.begin; first < range.end; first += kWarpSize) {
      const float value = first + Lane() < range.end ? row[first + Lane()] : 0.0f;
      const int count = Min(kWarpSize, range.end - first);
      for (int lane = 0; lane < count; ++lane) sum = AddRn(sum, static_cast<double>(Shuffle(value, lane)));
    }
    total = AddRn(total, sum);
  }
  // 0 for rows that are left out: no score is below 0.
  if (Lane() == 0) p.scale[BlockX()] = total > 0 ? static_cast<float>(DivRn(1.0, total)) : 0.0f;
}

struct MassScoresParams {
  ConstMatrixView mass;
  const float* scale;
  const int32_t* columns;
  int64_t count;
  float* out;
};

constexpr int kThreads = 256;

KVBLEND_KERNEL(kThreads, 4) MassScoresKernel(MassScoresParams p) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (i >= p.count) return;
  const float* mass = static_cast<const float*>(p.mass.data) + p.columns[i];
  float best = 0;
  for (int64_t row = 0; row < p.mass.rows; ++row) {
    const float score = MulRn(mass[row * p.mass.row_stride], p.scale[row]);
    best = score > best ? score : best;
  }
  p.out[i] = best;
}

}  // namespace

LaunchError LaunchSelectTopK(StreamHandle stream, const float* scores, int64_t n, IndicesView out) {
  const SelectTopKParams params{scores, static_cast<int32_t>(n), static_cast<int32_t>(out.size), out.data};
  return Launch<SelectTopKKernel>(stream, {.threads = kRankThreads, .shared_bytes = kRankSharedBytes},
                                  params);
}

LaunchError LaunchMassScores(StreamHandle stream, ConstMatrixView mass, const ColumnRange* counted,
                             int32_t num_counted, const int32_t* columns, float* scale, MatrixView out) {
  if (mass.rows > 0) {
    const LaunchError error = Launch<MassScaleKernel>(stream, {.blocks_x = mass.rows, .threads = kWarpSize},
                                                      MassScaleParams{mass, counted, num_counted, scale});
    if (!error.ok()) return error;
  }
  return Launch<MassScoresKernel>(
      stream, {.blocks_x = CeilDiv(out.cols, kThreads), .threads = kThreads},
      MassScoresParams{mass, scale, columns, out.cols, static_cast<float*>(out.data)});
}

}  // namespace kvblend::kernels::cuda
