#include "engine/model/gguf/gguf_types.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr std::array<TensorTypeTraits, 16> kReadable = {{
    {TensorType::kF32, "F32", 1, 4},
    {TensorType::kF16, "F16", 1, 2},
    {TensorType::kQ4_0, "Q4_0", 32, 2 + 16},
    {TensorType::kQ4_1, "Q4_1", 32, 2 + 2 + 16},
    {TensorType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    {TensorType::kQ5_1, "Q5_1", 32, 2 + 2 + 4 + 16},
    {TensorType::kQ8_0, "Q8_0", 32, 2 + 32},
    {TensorType::kQ2_K, "Q2_K", 256, 16 + 64 + 2 + 2},
    {TensorType::kQ3_K, "Q3_K", 256, 32 + 64 + 12 + 2},
    {TensorType::kQ4_K, "Q4_K", 256, 2 + 2 + 12 + 128},
    {TensorType::kQ5_K, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {TensorType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
    {TensorType::kIQ4_NL, "IQ4_NL", 32, 2 + 16},
    {TensorType::kIQ4_XS, "IQ4_XS", 256, 2 + 2 + 4 + 128},
    {TensorType::kMXFP4, "MXFP4", 32, 1 + 16},
    {TensorType::kBF16, "BF16", 1, 2},
}};

// Types that exist but cannot be read here: only so that a refusal can name them.
constexpr std::array<std::pair<uint32_t, std::string_view>, 17> kNamedOnly = {{
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {40, "NVFP4"},
}};

template <typename Stored, typename Wide>
GgufNumber Read(const std::byte* at) {
  Stored stored;
  std::memcpy(&stored, at, sizeof(stored));
  return static_cast<Wide>(stored);
}

constexpr std::array<ValueTypeTraits, 13> kValueTypes = {{
    {GgufValueType::kUint8, "uint8", 1, true, Read<uint8_t, uint64_t>},
    {GgufValueType::kInt8, "int8", 1, true, Read<int8_t, int64_t>},
    {GgufValueType::kUint16, "uint16", 2, true, Read<uint16_t, uint64_t>},
    {GgufValueType::kInt16, "int16", 2, true, Read<int16_t, int64_t>},
    {GgufValueType::kUint32, "uint32", 4, true, Read<uint32_t, uint64_t>},
    {GgufValueType::kInt32, "int32", 4, true, Read<int32_t, int64_t>},
    {GgufValueType::kFloat32, "float32", 4, false, Read<float, double>},
    {GgufValueType::kBool, "bool", 1, false, Read<uint8_t, uint64_t>},
    {GgufValueType::kString, "string", 0, false, nullptr},
    {GgufValueType::kArray, "array", 0, false, nullptr},
    {GgufValueType::kUint64, "uint64", 8, true, Read<uint64_t, uint64_t>},
    {GgufValueType::kInt64, "int64", 8, true, Read<int64_t, int64_t>},
    {GgufValueType::kFloat64, "float64", 8, false, Read<double, double>},
}};

std::string ReadableNames() {
  std::string names;
  for (const TensorTypeTraits& traits : kReadable)
    names.append(names.empty() ? "" : ", ").append(traits.name);
  return names;
}

}  // namespace

absl::StatusOr<TensorTypeTraits> FindTensorType(uint32_t number) {
  for (const TensorTypeTraits& traits : kReadable) {
    if (static_cast<uint32_t>(traits.type) == number) return traits;
  }
  std::string_view name = "unknown";
  for (const auto& [known_number, known_name] : kNamedOnly) {
    if (known_number == number) name = known_name;
  }
  return absl::UnimplementedError(
      Concat("tensor type ", number, " (", name, ") cannot be read; readable: ", ReadableNames()));
}

const TensorTypeTraits& TraitsOf(TensorType type) {
  for (const TensorTypeTraits& traits : kReadable) {
    if (traits.type == type) return traits;
  }
  return kReadable[0];  // every enumerator is in the table
}

const ValueTypeTraits& TraitsOf(GgufValueType type) {
  static constexpr ValueTypeTraits kUnknown = {GgufValueType::kArray, "unknown", 0, false, nullptr};
  const auto found = std::find_if(kValueTypes.begin(), kValueTypes.end(),
                                  [&](const ValueTypeTraits& traits) { return traits.type == type; });
  return found == kValueTypes.end() ? kUnknown : *found;
}

std::string_view Name(GgufValueType type) { return TraitsOf(type).name; }

}  // namespace kvblend::model
