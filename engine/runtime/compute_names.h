// What the engine's options call the types that a backend computes and stores with. "auto" is no type: the
// backend's own, or what the others imply.
#pragma once

#include <optional>

#include "engine/api/name_table.h"
#include "kernels/backend.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend {

inline constexpr NameTable<kernels::CpuBackendOptions::Gemm, 4> kGemms{
    {{kernels::CpuBackendOptions::Gemm::kAuto, "auto"},
     {kernels::CpuBackendOptions::Gemm::kBF16, "bf16"},
     {kernels::CpuBackendOptions::Gemm::kF32, "f32"},
     {kernels::CpuBackendOptions::Gemm::kInt8, "int8"}}};

template <typename Type>
constexpr std::pair<std::optional<Type>, std::string_view> Named(Type type) {
  return {type, kernels::Name(type)};
}

inline constexpr NameTable<std::optional<kernels::DataType>, 5> kKvDtypes{{{std::nullopt, "auto"},
                                                                           Named(kernels::DataType::kBF16),
                                                                           Named(kernels::DataType::kF16),
                                                                           Named(kernels::DataType::kF32),
                                                                           Named(kernels::DataType::kInt8)}};

inline constexpr NameTable<std::optional<kernels::KvEncoding>, 7> kChunkFormats{
    {{std::nullopt, "auto"},
     Named(kernels::KvEncoding::kInt8),
     Named(kernels::KvEncoding::kInt4),
     Named(kernels::KvEncoding::kFp8),
     Named(kernels::KvEncoding::kBF16),
     Named(kernels::KvEncoding::kF16),
     Named(kernels::KvEncoding::kF32)}};

}  // namespace kvblend
