// What every kernel of SelectiveAttention and AttentionMass is given.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/kernels.h"

namespace kvblend::kernels::cuda {

struct AttentionParams {
  PlanView plan;
  const float* q = nullptr;
  int64_t q_stride = 0;
  KvPagesView pages;
  int32_t num_heads = 0;
  int32_t sliding_window = 0;
  FastDivisor group;
  float log2_scale = 0;  // scores times this are exponents of 2; above 0
  bool negate = false;   // scores, when the scale is negative
  float soft_cap = 0;    // of scores in units of 1 / log2_scale; 0: none
  float inverse_soft_cap = 0;
  const float* sinks = nullptr;  // [num_heads], as of AttentionSpec; null: none
  bool q_vectorises = false;
  bool kv_vectorises = false;
  int32_t splits = 1;
  AttentionWorkspace workspace;
  void* out = nullptr;
  DataType out_dtype = DataType::kF32;
  int64_t out_stride = 0;
  int64_t total_kv_len = 0;
};

}  // namespace kvblend::kernels::cuda
