// Rows of tensors that Hugging Face folders hold in another order, or in parts, or in FP8. Internal to
// engine/model.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// F32, F16 and BF16 as GGUF has them. REQUIRES: one of these.
TensorType GgufTypeOf(SafeDtype dtype);

/// One number in F8 E4M3 (no infinities; both codes 0x7F and 0xFF are NaN), exactly.
float E4M3ToF32(uint8_t code);

/// A matrix of a folder and, where it is in FP8, the scales of its blocks.
struct HfMatrix {
  SafeDtype dtype = SafeDtype::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  absl::Span<const std::byte> data;
  absl::Span<const std::byte> scales;  // kF8E4M3: [ceil(rows / block_rows), ceil(cols / block_cols)]
  SafeDtype scale_dtype = SafeDtype::kF32;
  int64_t block_rows = 1;
  int64_t block_cols = 1;
};

/// How the rows of `parts`, one below the other, become those of a GGUF file; nullptr where they are that
/// already.
///   rotary_head: 0, or the number of rows of a head: within each, row i of the first half and row i of the
///   second
///                become rows 2i and 2i + 1 (a pair that is rotated together)
/// REQUIRES: one part or more, of the same size and dtype; rotary_head even, dividing their rows. Stateless
/// but for the spans, which must stay.
std::shared_ptr<const TensorRows> MakeHfRows(std::vector<HfMatrix> parts, int64_t rotary_head);

}  // namespace kvblend::model
