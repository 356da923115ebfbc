// The block layouts of GGUF's quantized types. Internal to engine/model: use dequantize.h.
#pragma once

#include <cstdint>

#include "engine/model/gguf/gguf_types.h"
#include "kernels/weight_source.h"

namespace kvblend::model {

/// Where one block's codes, scales and minima go. Minima of either kind are not written by formats that have
/// none.
struct BlockOut {
  uint8_t* codes;
  float* scales;  // this and the next not written by formats that are nested
  float* minimums;
  int8_t* scale_codes;  // what remains is written by these alone
  int8_t* minimum_codes;
  float* super_scale;
  float* super_minimum;
};

struct QuantizedType {
  TensorType type;
  kernels::QuantizedFormat format;
  void (*read_block)(const uint8_t* in, const BlockOut& out);  // any alignment
};

/// Elements of the largest block.
inline constexpr int64_t kMaxBlockElements = 256;

/// nullptr for types that are not quantized.
const QuantizedType* FindQuantized(TensorType type);

}  // namespace kvblend::model
