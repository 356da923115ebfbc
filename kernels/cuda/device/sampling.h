// The sampling kernel's host entry. Apart from kernels.h, which more files include.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/sampled_token.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

/// A SamplingSpec in device memory.
struct RowSampling {
  double temperature, top_p, min_p, repetition_penalty, uniform;
  int32_t top_k, num_top, scored_token;
  int32_t changes_begin, changes_end;  // of SampleParams::changes
  int32_t changed_row, weights_row;    // of the scratch memory; -1: needs none
};

struct SampleParams {
  ConstMatrixView logits;
  const RowSampling* rows = nullptr;  // [n]
  const LogitChange* changes = nullptr;
  float* changed_logits = nullptr;  // scratch: [rows with changes, vocab_size]
  uint64_t* weights = nullptr;      // scratch: [rows that draw, vocab_size]
  SampledToken* out = nullptr;      // [n]
};

LaunchError LaunchSample(StreamHandle stream, const SampleParams& params);

}  // namespace kvblend::kernels::cuda
