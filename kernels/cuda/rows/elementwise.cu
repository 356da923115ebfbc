// RmsNorm, GatedActivation, AddScaled, SoftCap, Embed, GatherRows and conversions: one block per row, eight
// elements per thread and step where all rows begin at multiples of 16 bytes.
#include <algorithm>

#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
bool Vectorises(const ConstMatrixView& m) {
  return m.cols % 8 == 0 && m.row_stride % 8 == 0 && Aligned(m.data);
}

// Launches kKernel<8> where `vectorises`, kKernel<1> otherwise.
#define KVBLEND_LAUNCH_ROWS(kernel, vectorises, stream, shape, params) \
  ((vectorises) ? Launch<kernel<8>>(stream, shape, params) : Launch<kernel<1>>(stream, shape, params))

struct RmsNormParams {
  ConstMatrixView x;
  const float* weight;
  float epsilon;
  MatrixView out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
RmsNormKernel(RmsNormParams p) {
  SharedArena arena;
  const int64_t in_row = BlockX() * p.x.row_stride, out_row = BlockX() * p.out.row_stride;
  float sum = 0;
  for (int64_t c = ThreadIndex() * kWidth; c < p.x.cols; c += kThreads * kWidth) {
    float x[kWidth];
    LoadValues(p.x.data, DataType::kF32, in_row + c, x);
    for (int i = 0; i < kWidth; ++i) sum += x[i] * x[i];
  }
  sum = BlockSum(sum, arena.Take<float>(32));
  const float mean = DivRn(sum, static_cast<float>(p.x.cols));
  const float inverse = DivRn(1.0f, SqrtRn(mean + p.epsilon));
  for (int64_t c = ThreadIndex() * kWidth; c < p.x.cols; c += kThreads * kWidth) {
    float x[kWidth], weight[kWidth];
    LoadValues(p.x.data, DataType::kF32, in_row + c, x);
    LoadValues(p.weight, DataType::kF32, c, weight);
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] * inverse * weight[i];
    StoreValues(p.out.data, p.out.dtype, out_row + c, x);
  }
}

// Runs shorter than a row (heads), and short rows: a warp takes one of them.
struct RmsNormRunsParams {
  ConstMatrixView x;
  const float* weight;
  int32_t run;       // columns
  int32_t num_runs;  // of a row
  float epsilon;
  MatrixView out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
RmsNormRunsKernel(RmsNormRunsParams p) {
  const int64_t index = BlockX() * (kThreads / kWarpSize) + Warp();
  if (index >= p.x.rows * p.num_runs) return;
  const int64_t row = index / p.num_runs, first = index % p.num_runs * p.run;
  const int64_t in = row * p.x.row_stride + first, out = row * p.out.row_stride + first;
  float sum = 0;
  for (int c = Lane() * kWidth; c < p.run; c += kWarpSize * kWidth) {
    float x[kWidth];
    LoadValues(p.x.data, DataType::kF32, in + c, x);
    for (int i = 0; i < kWidth; ++i) sum += x[i] * x[i];
  }
  const float mean = DivRn(WarpSum(sum), static_cast<float>(p.run));
  const float inverse = DivRn(1.0f, SqrtRn(mean + p.epsilon));
  for (int c = Lane() * kWidth; c < p.run; c += kWarpSize * kWidth) {
    float x[kWidth], weight[kWidth];
    LoadValues(p.x.data, DataType::kF32, in + c, x);
    LoadValues(p.weight, DataType::kF32, c, weight);
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] * inverse * weight[i];
    StoreValues(p.out.data, p.out.dtype, out + c, x);
  }
}

struct GatedActivationParams {
  ConstMatrixView gate;
  ConstMatrixView up;
  MatrixView out;
  Activation activation;
};

// z / (1 + exp(-t)) * up, t by the kind of activation. NaN stays what it is.
KVBLEND_DEVICE float Gated(Activation activation, float z, float up) {
  float exponent = z;
  if (activation == Activation::kGeluTanh) {
    // 2 sqrt(2 / pi) z (1 + 0.044715 z^2)
    exponent = 1.5957691216057308f * z * FmaRn(z * z, 0.044715f, 1.0f);
  } else if (activation == Activation::kClampedSilu) {
    if (z > kClampedSiluLimit) z = kClampedSiluLimit;
    if (up > kClampedSiluLimit) up = kClampedSiluLimit;
    if (up < -kClampedSiluLimit) up = -kClampedSiluLimit;
    up += 1.0f;
    exponent = kClampedSiluSharpness * z;
  }
  return DivRn(z, 1.0f + Exp(-exponent)) * up;
}

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
GatedActivationKernel(GatedActivationParams p) {
  for (int64_t c = ThreadIndex() * kWidth; c < p.out.cols; c += kThreads * kWidth) {
    float gate[kWidth], up[kWidth];
    LoadValues(p.gate.data, DataType::kF32, BlockX() * p.gate.row_stride + c, gate);
    LoadValues(p.up.data, DataType::kF32, BlockX() * p.up.row_stride + c, up);
    for (int i = 0; i < kWidth; ++i) gate[i] = Gated(p.activation, gate[i], up[i]);
    StoreValues(p.out.data, p.out.dtype, BlockX() * p.out.row_stride + c, gate);
  }
}

struct AddScaledParams {
  const float* x;
  int64_t x_stride;  // 0: one row for all
  float scale;
  MatrixView out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
AddScaledKernel(AddScaledParams p) {
  for (int64_t c = ThreadIndex() * kWidth; c < p.out.cols; c += kThreads * kWidth) {
    float x[kWidth], sum[kWidth];
    LoadValues(p.x, DataType::kF32, BlockX() * p.x_stride + c, x);
    LoadValues(p.out.data, DataType::kF32, BlockX() * p.out.row_stride + c, sum);
    for (int i = 0; i < kWidth; ++i) sum[i] = FmaRn(p.scale, x[i], sum[i]);
    StoreValues(p.out.data, DataType::kF32, BlockX() * p.out.row_stride + c, sum);
  }
}

struct SoftCapParams {
  float cap, inverse;
  MatrixView x;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
SoftCapKernel(SoftCapParams p) {
  for (int64_t c = ThreadIndex() * kWidth; c < p.x.cols; c += kThreads * kWidth) {
    float x[kWidth];
    LoadValues(p.x.data, DataType::kF32, BlockX() * p.x.row_stride + c, x);
    for (int i = 0; i < kWidth; ++i) x[i] = SoftCapped(x[i], p.cap, p.inverse);
    StoreValues(p.x.data, DataType::kF32, BlockX() * p.x.row_stride + c, x);
  }
}

struct ConvertParams {
  ConstMatrixView in;
  MatrixView out;
  const int32_t* rows;  // of `in`; null: row i for row i
  float scale = 1;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
ConvertRowsKernel(ConvertParams p) {
  const int64_t in_row = p.rows == nullptr ? BlockX() : p.rows[BlockX()];
  for (int64_t c = ThreadIndex() * kWidth; c < p.out.cols; c += kThreads * kWidth) {
    float values[kWidth];
    LoadValues(p.in.data, p.in.dtype, in_row * p.in.row_stride + c, values);
    for (int i = 0; i < kWidth; ++i) values[i] *= p.scale;
    StoreValues(p.out.data, p.out.dtype, BlockX() * p.out.row_stride + c, values);
  }
}

// As bytes, so that every pattern stays as it is.
template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
GatherRowsKernel(ConvertParams p) {
  const int64_t unit = SizeOf(p.in.dtype) / 2;  // 16-bit units per element
  const auto* in = static_cast<const uint16_t*>(p.in.data) + p.rows[BlockX()] * p.in.row_stride * unit;
  auto* out = static_cast<uint16_t*>(p.out.data) + BlockX() * p.out.row_stride * unit;
  for (int64_t c = ThreadIndex() * kWidth; c < p.out.cols * unit; c += kThreads * kWidth) {
    if constexpr (kWidth == 8) {
      Store128(out + c, Load128(in + c));
    } else {
      out[c] = in[c];
    }
  }
}

LaunchShape OneBlockPerRow(int64_t rows, int shared_bytes = 0) {
  return {.blocks_x = rows, .threads = kThreads, .shared_bytes = shared_bytes};
}

}  // namespace

LaunchError LaunchRmsNorm(StreamHandle stream, ConstMatrixView x, ConstMatrixView weights, float epsilon,
                          MatrixView out) {
  const auto* weight = static_cast<const float*>(weights.data);
  const bool vectorises = Vectorises(x) && Vectorises(out) && Aligned(weight);
  const int64_t run = std::min(weights.cols, x.cols);
  const int64_t cols_of_a_warp =
      kWarpSize * (vectorises ? 8 : 1);  // in one step: a shorter row needs no block
  if (run < x.cols || run <= cols_of_a_warp) {
    const auto num_runs = static_cast<int32_t>(x.cols / run);
    const RmsNormRunsParams params{x, weight, static_cast<int32_t>(run), num_runs, epsilon, out};
    const LaunchShape shape{.blocks_x = CeilDiv(x.rows * num_runs, kThreads / kWarpSize),
                            .threads = kThreads};
    return KVBLEND_LAUNCH_ROWS(RmsNormRunsKernel, run % 8 == 0 && vectorises, stream, shape, params);
  }
  const RmsNormParams params{x, weight, epsilon, out};
  return KVBLEND_LAUNCH_ROWS(RmsNormKernel, vectorises, stream, OneBlockPerRow(x.rows, 32 * sizeof(float)),
                             params);
}

LaunchError LaunchGatedActivation(StreamHandle stream, Activation activation, ConstMatrixView gate,
                                  ConstMatrixView up, MatrixView out) {
  const GatedActivationParams params{gate, up, out, activation};
  return KVBLEND_LAUNCH_ROWS(GatedActivationKernel, Vectorises(gate) && Vectorises(up) && Vectorises(out),
                             stream, OneBlockPerRow(out.rows), params);
}

LaunchError LaunchAddScaled(StreamHandle stream, ConstMatrixView x, float scale, MatrixView out) {
  const AddScaledParams params{static_cast<const float*>(x.data), x.rows == 1 ? 0 : x.row_stride, scale, out};
  return KVBLEND_LAUNCH_ROWS(AddScaledKernel, Vectorises(x) && Vectorises(out), stream,
                             OneBlockPerRow(out.rows), params);
}

LaunchError LaunchSoftCap(StreamHandle stream, float cap, MatrixView x) {
  const SoftCapParams params{cap, 1.0f / cap, x};
  return KVBLEND_LAUNCH_ROWS(SoftCapKernel, Vectorises(x), stream, OneBlockPerRow(x.rows), params);
}

LaunchError LaunchConvert(StreamHandle stream, ConstMatrixView in, MatrixView out) {
  const ConvertParams params{in, out, nullptr};
  return KVBLEND_LAUNCH_ROWS(ConvertRowsKernel, Vectorises(in) && Vectorises(out), stream,
                             OneBlockPerRow(out.rows), params);
}

LaunchError LaunchEmbed(StreamHandle stream, ConstMatrixView table, const int32_t* token_ids, float scale,
                        MatrixView out) {
  const ConvertParams params{table, out, token_ids, scale};
  return KVBLEND_LAUNCH_ROWS(ConvertRowsKernel, Vectorises(table) && Vectorises(out), stream,
                             OneBlockPerRow(out.rows), params);
}

LaunchError LaunchGatherRows(StreamHandle stream, ConstMatrixView in, const int32_t* row_indices,
                             MatrixView out) {
  const ConvertParams params{in, out, row_indices};
  return KVBLEND_LAUNCH_ROWS(GatherRowsKernel, Vectorises(in) && Vectorises(out), stream,
                             OneBlockPerRow(out.rows), params);
}

}  // namespace kvblend::kernels::cuda
