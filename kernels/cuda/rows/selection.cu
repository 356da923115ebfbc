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

struct MassTotalsParams {
  ConstMatrixView mass, lengths;
  const ColumnRange* counted;
  int32_t num_counted;
  double* totals;  // of mass, of lengths and of columns, these two where there is mass
};

// A warp takes a row for one of the totals. It sums in double one by one, as the definition does; rows are a
// model's layers and run beside each other.
KVBLEND_KERNEL(kWarpSize, 1) MassTotalsKernel(MassTotalsParams p) {
  const float* mass = static_cast<const float*>(p.mass.data) + BlockX() * p.mass.row_stride;
  const float* lengths = static_cast<const float*>(p.lengths.data) + BlockX() * p.lengths.row_stride;
  const auto counts = [&](int column) {
    const float attention = mass[column];
    if (BlockY() == 0) return attention;
    if (!(attention > 0)) return 0.0f;
    return BlockY() == 1 ? static_cast<float>(lengths[column]) : 1.0f;
  };
  double total = 0;
  for (int r = 0; r < p.num_counted; ++r) {
    const ColumnRange range = p.counted[r];
    double sum = 0;
    for (int first = range.begin; first < range.end; first += kWarpSize) {
      const float value = first + Lane() < range.end ? counts(first + Lane()) : 0.0f;
      const int count = Min(kWarpSize, range.end - first);
      for (int lane = 0; lane < count; ++lane) sum = AddRn(sum, static_cast<double>(Shuffle(value, lane)));
    }
    total = AddRn(total, sum);
  }
  if (Lane() == 0) p.totals[BlockY() * p.mass.rows + BlockX()] = total;
}

struct MassScoresParams {
  ConstMatrixView mass, lengths;
  const double* totals;
  const int32_t* columns;
  int64_t count;
  float* out;
};

constexpr int kThreads = 256;

KVBLEND_KERNEL(kThreads, 4) MassScoresKernel(MassScoresParams p) {
  const int64_t i = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (i >= p.count) return;
  const float* mass = static_cast<const float*>(p.mass.data) + p.columns[i];
  const float* lengths = static_cast<const float*>(p.lengths.data) + p.columns[i];
  float sum = 0;
  const int64_t rows = p.mass.rows;
  for (int64_t row = 0; row < rows; ++row) {
    const double product = MulRn(p.totals[row], p.totals[rows + row]);
    if (!(product > 0)) continue;
    const float term = MulRn(MulRn(mass[row * p.mass.row_stride], lengths[row * p.lengths.row_stride]),
                             static_cast<float>(DivRn(p.totals[2 * rows + row], product)));
    sum = term > 0 ? AddRn(sum, MulRn(term, term)) : sum;
  }
  p.out[i] = sum;
}

}  // namespace

LaunchError LaunchSelectTopK(StreamHandle stream, const float* scores, int64_t n, IndicesView out) {
  const SelectTopKParams params{scores, static_cast<int32_t>(n), static_cast<int32_t>(out.size), out.data};
  return Launch<SelectTopKKernel>(stream, {.threads = kRankThreads, .shared_bytes = kRankSharedBytes},
                                  params);
}

LaunchError LaunchMassScores(StreamHandle stream, ConstMatrixView mass, ConstMatrixView lengths,
                             const ColumnRange* counted, int32_t num_counted, const int32_t* columns,
                             double* totals, MatrixView out) {
  if (mass.rows > 0) {
    const LaunchError error = Launch<MassTotalsKernel>(
        stream, {.blocks_x = mass.rows, .blocks_y = kMassTotals, .threads = kWarpSize},
        MassTotalsParams{mass, lengths, counted, num_counted, totals});
    if (!error.ok()) return error;
  }
  return Launch<MassScoresKernel>(
      stream, {.blocks_x = CeilDiv(out.cols, kThreads), .threads = kThreads},
      MassScoresParams{mass, lengths, totals, columns, out.cols, static_cast<float*>(out.data)});
}

}  // namespace kvblend::kernels::cuda
