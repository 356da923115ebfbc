// The numbers that GGUF gives to tensor and value types, and the block geometry of the tensor types that
// kvblend can read. Layouts follow the GGUF specification (ggml-org/ggml, docs/gguf.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"

namespace kvblend::model {

/// Storage of a tensor's elements. The values are GGUF's own numbers.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

/// A row is a whole number of blocks; each block holds `block_elements` elements in `block_bytes` bytes.
struct TensorTypeTraits {
  TensorType type;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
};

/// kUnimplemented, naming the type where its name is known, for everything that is not in TensorType.
absl::StatusOr<TensorTypeTraits> FindTensorType(uint32_t number);

/// Traits of a type that is in the enum.
const TensorTypeTraits& TraitsOf(TensorType type);

/// Type of a metadata value. The values are GGUF's own numbers.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

/// A scalar, as wide as its kind goes: unsigned, signed or floating.
using GgufNumber = std::variant<uint64_t, int64_t, double>;

struct ValueTypeTraits {
  GgufValueType type;
  std::string_view name;  // "uint32", "string", ...
  int64_t bytes;          // of one scalar; 0 for strings and arrays
  bool is_integer;
  GgufNumber (*read)(const std::byte* at);  // a scalar, a bool as 0 or 1; null for strings and arrays
};

/// "unknown" and no scalar for a number that is not in the enum.
const ValueTypeTraits& TraitsOf(GgufValueType type);
std::string_view Name(GgufValueType type);

}  // namespace kvblend::model
