// What a mixture of experts needs besides products: who is chosen, the rows in the order of their experts,
// biases, weighted sums.
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

struct ChooseExpertsParams {
  ConstMatrixView logits;
  int32_t num_chosen;
  bool renormalise;
  int32_t* experts;
  float* weights;
  int64_t weights_stride;
};

KVBLEND_DEVICE float LogitOf(const float* logits, int expert) {
  const float logit = logits[expert];
  return logit == logit ? logit : FloatFromBits(0xFF800000u);  // NaN counts as -infinity
}

// A warp takes a row. One after the other it looks for the highest logit behind the one before, in the order
// of falling logits and rising numbers; lane j keeps the one of place j.
KVBLEND_KERNEL(kThreads, 8) ChooseExpertsKernel(ChooseExpertsParams p) {
  const int64_t row = int64_t{BlockX()} * kWarps + Warp();
  if (row >= p.logits.rows) return;
  const float* logits = static_cast<const float*>(p.logits.data) + row * p.logits.row_stride;
  const int num_experts = static_cast<int>(p.logits.cols);
  float last = 0, own = 0;
  int last_expert = -1, own_expert = 0;
  for (int place = 0; place < p.num_chosen; ++place) {
    float best = 0;
    int best_expert = num_experts;  // none
    for (int expert = Lane(); expert < num_experts; expert += kWarpSize) {
      const float logit = LogitOf(logits, expert);
      const bool behind = place == 0 || logit < last || (logit == last && expert > last_expert);
      if (behind && (best_expert == num_experts || logit > best)) {
        best = logit;
        best_expert = expert;
      }
    }
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
      const float other = ShuffleXor(best, mask);
      const int other_expert = ShuffleXor(best_expert, mask);
      const bool better =
          best_expert == num_experts || other > best || (other == best && other_expert < best_expert);
      if (other_expert < num_experts && better) {
        best = other;
        best_expert = other_expert;
      }
    }
    last = best;
    last_expert = best_expert;
    if (Lane() == place) {
      own = best;
      own_expert = best_expert;
    }
  }
  const float max = Shuffle(own, 0);
  const bool chosen = Lane() < p.num_chosen;
  const float weight = chosen ? Exp(own - max) : 0.0f;
  float sum = 0;
  if (p.renormalise) {
    sum = weight;
  } else {
    for (int expert = Lane(); expert < num_experts; expert += kWarpSize)
      sum += Exp(LogitOf(logits, expert) - max);
  }
  sum = WarpSum(sum);
  if (!chosen) return;
  p.experts[row * p.num_chosen + Lane()] = own_expert;
  p.weights[row * p.weights_stride + Lane()] = DivRn(weight, sum);
}

struct GroupRowsParams {
  const int32_t* experts;
  int32_t num_rows;
  int32_t num_experts;
  int32_t* begin;
  int32_t* rows;
};

// A warp takes an expert and goes through all rows twice: how many belong to the experts before, then which
// are its own.
KVBLEND_KERNEL(kWarpSize, 16) GroupRowsKernel(GroupRowsParams p) {
  const int expert = BlockX();
  int before = 0, own = 0;
  for (int first = 0; first < p.num_rows; first += kWarpSize) {
    const int row = first + Lane();
    const int of_row = row < p.num_rows ? p.experts[row] : -1;
    before += CountBits(Ballot(of_row >= 0 && of_row < expert));
    own += CountBits(Ballot(of_row == expert));
  }
  if (Lane() == 0) {
    p.begin[expert] = before;
    if (expert == p.num_experts - 1) p.begin[p.num_experts] = before + own;
  }
  int place = before;
  for (int first = 0; first < p.num_rows; first += kWarpSize) {
    const int row = first + Lane();
    const bool mine = row < p.num_rows && p.experts[row] == expert;
    const uint32_t lanes = Ballot(mine);
    if (mine) p.rows[place + CountBits(lanes & ((uint32_t{1} << Lane()) - 1))] = row;
    place += CountBits(lanes);
  }
}

struct AddExpertBiasParams {
  ConstMatrixView bias;
  const int32_t* experts;
  MatrixView out;
};

KVBLEND_KERNEL(kThreads, 8) AddExpertBiasKernel(AddExpertBiasParams p) {
  const int expert = p.experts[BlockX()];
  if (expert < 0 || expert >= p.bias.rows) return;
  const float* bias = static_cast<const float*>(p.bias.data) + expert * p.bias.row_stride;
  float* out = static_cast<float*>(p.out.data) + BlockX() * p.out.row_stride;
  for (int64_t c = ThreadIndex(); c < p.out.cols; c += kThreads) out[c] += bias[c];
}

struct SumExpertsParams {
  ConstMatrixView x;
  const float* weights;
  int64_t weights_stride;
  int32_t count;
  bool accumulate;
  MatrixView out;
};

KVBLEND_KERNEL(kThreads, 8) SumExpertsKernel(SumExpertsParams p) {
  const int64_t row = BlockX();
  const float* weights = p.weights + row * p.weights_stride;
  const float* x = static_cast<const float*>(p.x.data) + row * p.count * p.x.row_stride;
  float* out = static_cast<float*>(p.out.data) + row * p.out.row_stride;
  for (int64_t c = ThreadIndex(); c < p.out.cols; c += kThreads) {
    float sum = p.accumulate ? out[c] : 0.0f;
    for (int j = 0; j < p.count; ++j) sum = FmaRn(weights[j], x[j * p.x.row_stride + c], sum);
    out[c] = sum;
  }
}

}  // namespace

LaunchError LaunchChooseExperts(StreamHandle stream, ConstMatrixView logits, const RoutingSpec& spec,
                                int32_t* experts, MatrixView weights) {
  return Launch<ChooseExpertsKernel>(
      stream, {.blocks_x = CeilDiv(logits.rows, kWarps), .threads = kThreads},
      ChooseExpertsParams{logits, spec.num_chosen, spec.renormalise, experts,
                          static_cast<float*>(weights.data), weights.row_stride});
}

LaunchError LaunchGroupRows(StreamHandle stream, const int32_t* experts, const GroupedRows& out) {
  return Launch<GroupRowsKernel>(
      stream, {.blocks_x = out.num_experts, .threads = kWarpSize},
      GroupRowsParams{experts, out.num_rows, out.num_experts, out.begin, out.rows});
}

LaunchError LaunchAddExpertBias(StreamHandle stream, ConstMatrixView bias, const int32_t* experts,
                                MatrixView out) {
  return Launch<AddExpertBiasKernel>(stream, {.blocks_x = out.rows, .threads = kThreads},
                                     AddExpertBiasParams{bias, experts, out});
}

LaunchError LaunchSumExperts(StreamHandle stream, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                             MatrixView out) {
  return Launch<SumExpertsKernel>(
      stream, {.blocks_x = out.rows, .threads = kThreads},
      SumExpertsParams{x, static_cast<const float*>(weights.data), weights.row_stride,
                       static_cast<int32_t>(weights.cols), accumulate, out});
}

}  // namespace kvblend::kernels::cuda
