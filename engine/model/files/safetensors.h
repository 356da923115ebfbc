// Safetensors files: the length of a header (8 bytes, little endian), the header in JSON, the tensors' bytes.
// Internal to engine/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::model {

enum class SafeDtype : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI64, kU8 };

std::string_view Name(SafeDtype dtype);
/// Whether elements are numbers by themselves: F32, F16 and BF16.
bool IsPlainFloat(SafeDtype dtype);
int64_t SizeOf(SafeDtype dtype);

struct SafeTensor {
  std::string name;
  SafeDtype dtype = SafeDtype::kF32;
  std::vector<int64_t> shape;  // as in the file: the length of a row last; empty for one number
  absl::Span<const std::byte> data;

  int64_t elements() const;
  /// "[49152, 576]"
  std::string ShapeString() const;
};

/// The tensors, sorted by name; their data points into `bytes`. The file is not trusted: nothing is allocated
/// that its size does not justify, and every tensor lies in the file and overlaps no other. kInvalidArgument
/// naming `name` and what is wrong, kDataLoss for what is truncated or contradicts itself, kUnimplemented for
/// a dtype that is not read.
absl::StatusOr<std::vector<SafeTensor>> ParseSafetensors(absl::Span<const std::byte> bytes,
                                                         std::string_view name);

}  // namespace kvblend::model
