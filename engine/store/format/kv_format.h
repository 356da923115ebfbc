// How the KV of one token is laid out in the store.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/kv_section.h"

namespace kvblend::store {

/// Part of every chunk's key: entries of different formats never meet.
struct KvFormat {
  kernels::KvEncoding encoding = kernels::KvEncoding::kBF16;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t version = 1;  // 1: K un-rotated, sections as kernels/kv_section.h defines them

  // What follows REQUIRES that Validate() is ok.

  /// Elements in one token's K (or V) of one layer.
  int64_t RowElements() const { return int64_t{num_kv_heads} * head_dim; }
  /// Bytes of K and V of one token over all layers, scales included, padding left out.
  int64_t BytesPerToken() const;
  /// The section that holds K or V of `num_tokens` tokens of one layer.
  kernels::KvSectionLayout Section(kernels::KvPart part, int32_t num_tokens) const {
    return kernels::LayoutOf(encoding, part, num_tokens, RowElements());
  }

  /// kInvalidArgument naming the field when a dimension is out of range or encoding or version are unknown.
  absl::Status Validate() const;

  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

}  // namespace kvblend::store
