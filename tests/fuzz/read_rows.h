// What backends read of a tensor: rows, as values and, where they are quantized, as they are stored.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// REQUIRES: a row of the tensor.
inline absl::Status ReadWholeRow(const GgufTensor& tensor, int64_t row) {
  std::vector<float> values(tensor.cols());
  KVBLEND_RETURN_IF_ERROR(tensor.ReadRow(row, absl::MakeSpan(values)));
  const auto format = tensor.quantized_format();
  if (!format.has_value()) return absl::OkStatus();
  std::vector<uint8_t> codes(tensor.cols());
  std::vector<float> scales(tensor.cols() / format->group), minimums(scales.size());
  kernels::QuantizedRow out{absl::MakeSpan(codes), absl::MakeSpan(scales), absl::MakeSpan(minimums)};
  std::vector<int8_t> scale_codes(scales.size()), minimum_codes(scales.size());
  std::vector<float> super_scales(tensor.cols() / kernels::kSuperGroup), super_minimums(super_scales.size());
  if (format->nested) {
    out.nested = {.scale_codes = absl::MakeSpan(scale_codes),
                  .minimum_codes = absl::MakeSpan(minimum_codes),
                  .super_scales = absl::MakeSpan(super_scales),
                  .super_minimums = absl::MakeSpan(super_minimums)};
  }
  return tensor.ReadCodes(row, out);
}

}  // namespace kvblend::model
