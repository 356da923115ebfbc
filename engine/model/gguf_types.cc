#include "engine/model/gguf_types.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/model/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr std::array<TensorTypeTraits, 11> kReadable = {{
    {TensorType::kF32, "F32", 1, 4},
    {TensorType::kF16, "F16", 1, 2},
    {TensorType::kQ4_0, "Q4_0", 32, 2 + 16},
    {TensorType::kQ4_1, "Q4_1", 32, 2 + 2 + 16},
    {TensorType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    {TensorType::kQ5_1, "Q5_1", 32, 2 + 2 + 4 + 16},
    {TensorType::kQ8_0, "Q8_0", 32, 2 + 32},
    {TensorType::kQ4_K, "Q4_K", 256, 2 + 2 + 12 + 128},
    {TensorType::kQ5_K, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {TensorType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
    {TensorType::kBF16, "BF16", 1, 2},
}};

// Types that exist but cannot be read here: only so that a refusal can name them.
constexpr std::array<std::pair<uint32_t, std::string_view>, 21> kNamedOnly = {{
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
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

std::string_view Name(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return "uint8";
    case GgufValueType::kInt8:
      return "int8";
    case GgufValueType::kUint16:
      return "uint16";
    case GgufValueType::kInt16:
      return "int16";
    case GgufValueType::kUint32:
      return "uint32";
    case GgufValueType::kInt32:
      return "int32";
    case GgufValueType::kFloat32:
      return "float32";
    case GgufValueType::kBool:
      return "bool";
    case GgufValueType::kString:
      return "string";
    case GgufValueType::kArray:
      return "array";
    case GgufValueType::kUint64:
      return "uint64";
    case GgufValueType::kInt64:
      return "int64";
    case GgufValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

int64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

}  // namespace kvblend::model
