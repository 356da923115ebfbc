// SHA-256 of bytes and of token ids: what chunk addresses are made of. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store {

/// SHA-256 of raw bytes.
Digest Sha256(std::string_view bytes);

/// Names the anchor that a chunk was computed behind: the tokens before it whose KV was dropped.
///   SHA-256( str("kvblend token ids") u32(1) tokens(token_ids) ), encodings as in chunk_address.h
Digest HashTokens(absl::Span<const int32_t> token_ids);
/// HashTokens of no tokens: the chunk was computed by itself, from position 0.
const Digest& IsolatedAnchorHash();

}  // namespace kvblend::store
