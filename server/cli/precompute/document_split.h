// Splits documents of any length by calls whose requests have a limit.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblend/v1/chunks.pb.h"

namespace kvblend::server::cli {

using SplitCall =
    std::function<absl::StatusOr<v1::SplitDocumentResponse>(const v1::SplitDocumentRequest& request)>;

/// Calls `on_chunk` for each chunk of `text`, in order; positions are in `text`, own_bytes is how far the
/// next chunk begins behind this one. `request` has everything but the text, which is sent piece by piece:
/// the chunks are the same. Errors are the calls' and on_chunk's.
absl::Status SplitInPieces(
    const SplitCall& split, v1::SplitDocumentRequest request, std::string_view text,
    const std::function<absl::Status(const v1::DocumentChunk& chunk, int64_t own_bytes)>& on_chunk);

}  // namespace kvblend::server::cli
