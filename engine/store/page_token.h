// Where a page of a list ended, as text that clients hand back for the next page. Private to this folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/api/chunk_info.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store::internal {

/// `last`: of the page.
std::string EncodePageToken(const ChunkInfo& last);

/// Nothing for an empty token, which begins a list. kInvalidArgument: not a token, or one of a list of
/// another namespace than `filter`.
absl::StatusOr<std::optional<ListPlace>> DecodePageToken(NamespaceFilter filter, std::string_view token);

}  // namespace kvblend::store::internal
