// Rows of GGUF tensors to float, or to what quantised ones consist of. Every type follows its definition in
// the GGUF specification; each multiplication and addition is rounded to fp32 on its own (no fused
// multiply-add), which makes results reproducible bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/gguf_types.h"
#include "kernels/weight_source.h"

namespace kvblend::model {

/// Writes the dequantised elements of `row` to `out`. Thread-safe.
///   row: bytes of whole blocks, any alignment;  out: as many elements as these blocks hold
/// kInvalidArgument when the two sizes do not belong together.
absl::Status DequantizeRow(TensorType type, absl::Span<const std::byte> row, absl::Span<float> out);

/// How the elements of a quantised type are made of codes, scales and minima; none for F32, F16 and BF16.
std::optional<kernels::QuantizedFormat> QuantisedFormatOf(TensorType type);

/// Writes a row's codes, scales and minima, from which DequantizeRow's elements follow. Thread-safe.
/// kInvalidArgument when the type is not quantised or the sizes do not belong together.
absl::Status ReadQuantisedRow(TensorType type, absl::Span<const std::byte> row,
                              const kernels::QuantizedRow& out);

/// IEEE 754 binary16 to binary32, exact.
float HalfToFloat(uint16_t half);

}  // namespace kvblend::model
