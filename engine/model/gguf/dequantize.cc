#include "engine/model/gguf/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/gguf/quantized_blocks.h"
#include "kernels/host/float_convert.h"

namespace kvblend::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place and is little endian");

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

constexpr int64_t kMaxGroups = kMaxBlockElements / 16;

// Reads one block. Nested scales and minima are multiplied out; their parts go where `nested` has room.
void ReadBlock(const QuantizedType& type, const uint8_t* in, int64_t elements, uint8_t* codes, float* scales,
               float* minimums, const kernels::NestedScales& nested) {
  int8_t scale_codes[kMaxGroups], minimum_codes[kMaxGroups];
  float super_scale = 0, super_minimum = 0;
  type.read_block(in, {codes, scales, minimums, scale_codes, minimum_codes, &super_scale, &super_minimum});
  if (!type.format.nested) return;
  const int64_t groups = elements / type.format.group;
  for (int64_t g = 0; g < groups; ++g) scales[g] = super_scale * static_cast<float>(scale_codes[g]);
  if (!nested.scale_codes.empty()) {
    std::copy_n(scale_codes, groups, nested.scale_codes.begin());
    nested.super_scales[0] = super_scale;
  }
  if (!type.format.has_minimum) return;
  for (int64_t g = 0; g < groups; ++g) minimums[g] = super_minimum * static_cast<float>(minimum_codes[g]);
  if (!nested.minimum_codes.empty()) {
    std::copy_n(minimum_codes, groups, nested.minimum_codes.begin());
    nested.super_minimums[0] = super_minimum;
  }
}

// One block, dequantized.
void ExpandBlock(const QuantizedType& type, const uint8_t* in, int64_t elements, float* out) {
  uint8_t codes[kMaxBlockElements];
  float scales[kMaxGroups], minimums[kMaxGroups];
  ReadBlock(type, in, elements, codes, scales, minimums, {});
  const kernels::QuantizedFormat& format = type.format;
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t group = i / format.group;
    out[i] = scales[group] * static_cast<float>(codes[i] - format.zero_point);
    if (format.has_minimum) out[i] += minimums[group];
  }
}

float ReadElement(TensorType type, const uint8_t* in) {
  switch (type) {
    case TensorType::kF16:
      return kernels::F16ToF32(Load<uint16_t>(in));
    case TensorType::kBF16:
      return kernels::Bf16ToF32(Load<uint16_t>(in));
    default:
      return Load<float>(in);
  }
}

absl::Status CheckSizes(std::string_view operation, const TensorTypeTraits& traits, size_t bytes,
                        size_t elements) {
  const size_t blocks = bytes / traits.block_bytes;
  if (bytes % traits.block_bytes == 0 && elements == blocks * traits.block_elements) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(operation, ": ", bytes, " bytes of ", traits.name, " do not make ",
                                           elements, " elements (", traits.block_elements,
                                           " elements per block of ", traits.block_bytes, " bytes)"));
}

}  // namespace

absl::Status DequantizeRow(TensorType type, absl::Span<const std::byte> row, absl::Span<float> out) {
  KVBLEND_RETURN_IF_ERROR(FindTensorType(static_cast<uint32_t>(type)).status());
  const TensorTypeTraits& traits = TraitsOf(type);
  KVBLEND_RETURN_IF_ERROR(CheckSizes("DequantizeRow", traits, row.size(), out.size()));
  const auto* in = reinterpret_cast<const uint8_t*>(row.data());
  const QuantizedType* quantized = FindQuantized(type);
  for (size_t begin = 0; begin < out.size(); begin += traits.block_elements, in += traits.block_bytes) {
    if (quantized != nullptr) {
      ExpandBlock(*quantized, in, traits.block_elements, out.data() + begin);
    } else {
      out[begin] = ReadElement(type, in);
    }
  }
  return absl::OkStatus();
}

std::optional<kernels::QuantizedFormat> QuantizedFormatOf(TensorType type) {
  const QuantizedType* quantized = FindQuantized(type);
  if (quantized == nullptr) return std::nullopt;
  return quantized->format;
}

absl::Status ReadQuantizedRow(TensorType type, absl::Span<const std::byte> row,
                              const kernels::QuantizedRow& out) {
  const QuantizedType* quantized = FindQuantized(type);
  if (quantized == nullptr) {
    return absl::InvalidArgumentError(Concat("ReadQuantizedRow: type ", static_cast<uint32_t>(type),
                                             "; allowed: the quantized types (Q4_0, ..., MXFP4)"));
  }
  const TensorTypeTraits& traits = TraitsOf(type);
  KVBLEND_RETURN_IF_ERROR(CheckSizes("ReadQuantizedRow", traits, row.size(), out.codes.size()));
  const size_t groups = out.codes.size() / quantized->format.group;
  if (out.scales.size() != groups || out.minimums.size() != groups) {
    return absl::InvalidArgumentError(Concat("ReadQuantizedRow: room for ", out.scales.size(), " scales and ",
                                             out.minimums.size(), " minima; allowed: ", groups));
  }
  const kernels::NestedScales& nested = out.nested;
  const size_t supers = quantized->format.nested ? out.codes.size() / kernels::kSuperGroup : 0;
  const auto fits = [&](size_t codes, size_t of_all) {
    return codes == 0 ? of_all == 0 : quantized->format.nested && codes == groups && of_all == supers;
  };
  if (!fits(nested.scale_codes.size(), nested.super_scales.size()) ||
      !fits(nested.minimum_codes.size(), nested.super_minimums.size())) {
    return absl::InvalidArgumentError(
        Concat("ReadQuantizedRow: room for ", nested.scale_codes.size(), " and ", nested.minimum_codes.size(),
               " nested scales and minima; allowed: 0, ", quantized->format.nested ? groups : 0));
  }
  if (!quantized->format.has_minimum) std::fill(out.minimums.begin(), out.minimums.end(), 0.0f);
  const auto* in = reinterpret_cast<const uint8_t*>(row.data());
  for (size_t begin = 0; begin < out.codes.size(); begin += traits.block_elements, in += traits.block_bytes) {
    const size_t group = begin / quantized->format.group, super = begin / kernels::kSuperGroup;
    const kernels::NestedScales of_block = {
        .scale_codes = nested.scale_codes.subspan(std::min(group, nested.scale_codes.size())),
        .minimum_codes = nested.minimum_codes.subspan(std::min(group, nested.minimum_codes.size())),
        .super_scales = nested.super_scales.subspan(std::min(super, nested.super_scales.size())),
        .super_minimums = nested.super_minimums.subspan(std::min(super, nested.super_minimums.size()))};
    ReadBlock(*quantized, in, traits.block_elements, out.codes.data() + begin, out.scales.data() + group,
              out.minimums.data() + group, of_block);
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
