// What files and messages of a learner have in common: they begin with what has to be the same for moments to
// be of use, and end with a checksum. Private to this folder.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/kv/correction_learner.h"

namespace kvblend::kv {

inline constexpr size_t kPreambleBytes = 64, kSealBytes = 8;

/// `magic` (8 bytes), version, anchoring (u32), the model's fingerprint (32 bytes), encoding of stored KV,
/// layers, KV heads (u32), head_dim and the kind of moments (u16).
std::string LearnerPreamble(std::string_view magic, uint32_t version, const LearnerOptions& options);

/// Appends XXH3-64 of all bytes so far.
void Seal(std::string& bytes);

/// What stands between the preamble and the seal, which are checked. kInvalidArgument: it begins with another
/// magic, is damaged, or differs from `preamble`. `name`: of the thing, for that message.
absl::StatusOr<std::string_view> Unseal(std::string_view name, std::string_view preamble,
                                        std::string_view bytes);

template <typename T>
void PutValues(absl::Span<const T> values, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}
template <typename T>
void PutValue(T value, std::string& bytes) {
  PutValues(absl::Span<const T>(&value, 1), bytes);
}
/// From the front. REQUIRES: so many bytes are there.
template <typename T>
T TakeValue(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

}  // namespace kvblend::kv
