// How the KV of one token is laid out in the store.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/tensor.h"

namespace kvblend::store {

/// Part of every chunk's key: entries of different formats never meet. Formats to come (int8 with scales,
/// fp8) get a new `version` or dtype.
struct KvFormat {
  kernels::DataType dtype = kernels::DataType::kBF16;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t version = 1;  // 1: K un-rotated, K and V row-major [num_tokens, num_kv_heads * head_dim] in dtype

  /// Elements in one token's K (or V) of one layer. REQUIRES: Validate() is ok (so for BytesPerToken).
  int64_t RowElements() const { return int64_t{num_kv_heads} * head_dim; }
  /// Bytes of K and V of one token over all layers, alignment padding left out.
  int64_t BytesPerToken() const { return 2 * num_layers * RowElements() * kernels::SizeOf(dtype); }

  /// kInvalidArgument naming the field when a dimension is out of range or the version unknown.
  absl::Status Validate() const;

  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

}  // namespace kvblend::store
