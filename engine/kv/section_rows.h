// Stored KV as plain numbers.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kv_section.h"

namespace kvblend::kv {

/// Rows of one layer, K and V of a token side by side: out is [rows.size(), k.cols + v.cols].
/// REQUIRES: both sections lie in host memory; every row is one of theirs.
void DecodeRows(const kernels::KvSectionView& k, const kernels::KvSectionView& v,
                absl::Span<const int32_t> rows, absl::Span<float> out);

}  // namespace kvblend::kv
