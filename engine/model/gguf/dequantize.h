// Rows of GGUF tensors to float, or to what quantized ones consist of. Every type follows its definition in
// the GGUF specification; each multiplication and addition is rounded to fp32 on its own (no fused
// multiply-add), which makes results reproducible bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_types.h"
#include "kernels/weight_source.h"

namespace kvblend::model {

/// Writes the dequantized elements of `row` to `out`. Thread-safe.
///   row: bytes of whole blocks, any alignment;  out: as many elements as these blocks hold
/// kInvalidArgument when the two sizes do not belong together.
absl::Status DequantizeRow(TensorType type, absl::Span<const std::byte> row, absl::Span<float> out);

/// How the elements of a quantized type are made of codes, scales and minima; none for F32, F16 and BF16.
std::optional<kernels::QuantizedFormat> QuantizedFormatOf(TensorType type);

/// Writes a row's codes, scales and minima, from which DequantizeRow's elements follow. Thread-safe.
/// kInvalidArgument when the type is not quantized or the sizes do not belong together.
absl::Status ReadQuantizedRow(TensorType type, absl::Span<const std::byte> row,
                              const kernels::QuantizedRow& out);

}  // namespace kvblend::model
