// The names, in the engine's options, of the types that a backend computes and stores with. "auto" stands for
// the backend's own type, or the one that other options imply.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend {

template <typename Type, size_t kCount>
using TypeNames = std::array<std::pair<Type, std::string_view>, kCount>;

inline constexpr TypeNames<kernels::CpuBackendOptions::Gemm, 5> kGemms{
    {{kernels::CpuBackendOptions::Gemm::kAuto, "auto"},
     {kernels::CpuBackendOptions::Gemm::kBF16, "bf16"},
     {kernels::CpuBackendOptions::Gemm::kF32, "f32"},
     {kernels::CpuBackendOptions::Gemm::kInt16, "int16"},
     {kernels::CpuBackendOptions::Gemm::kInt8, "int8"}}};

template <typename Type>
constexpr std::pair<std::optional<Type>, std::string_view> Named(Type type) {
  return {type, kernels::Name(type)};
}

inline constexpr TypeNames<std::optional<kernels::DataType>, 5> kKvDtypes{{{std::nullopt, "auto"},
                                                                           Named(kernels::DataType::kBF16),
                                                                           Named(kernels::DataType::kF16),
                                                                           Named(kernels::DataType::kF32),
                                                                           Named(kernels::DataType::kInt8)}};

inline constexpr TypeNames<std::optional<kernels::KvEncoding>, 7> kChunkFormats{
    {{std::nullopt, "auto"},
     Named(kernels::KvEncoding::kInt8),
     Named(kernels::KvEncoding::kInt4),
     Named(kernels::KvEncoding::kFp8),
     Named(kernels::KvEncoding::kBF16),
     Named(kernels::KvEncoding::kF16),
     Named(kernels::KvEncoding::kF32)}};

/// "auto, bf16, f32".
template <typename Type, size_t kCount>
std::string ListOf(const TypeNames<Type, kCount>& names) {
  std::string list;
  for (const auto& entry : names) list.append(list.empty() ? "" : ", ").append(entry.second);
  return list;
}

/// kInvalidArgument naming the option, the text and what is allowed.
template <typename Type, size_t kCount>
absl::StatusOr<Type> ParseTypeName(const TypeNames<Type, kCount>& names, std::string_view option,
                                   std::string_view text) {
  for (const auto& [type, name] : names) {
    if (name == text) return type;
  }
  std::string message(option);
  message.append(" is '").append(text).append("'; allowed: ").append(ListOf(names));
  return absl::InvalidArgumentError(message);
}

}  // namespace kvblend
