// What the writer and the reader of entries both do. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store {

/// XXH3-64 of a whole header, its own checksum counted as zero. REQUIRES: header.size() >= kEntryPageBytes
uint64_t HeaderChecksum(absl::Span<const std::byte> header);

/// Whether an entry may say what `header` says, its layers left out. kInvalidArgument naming the field.
absl::Status CheckHeaderFields(const EntryHeader& header);

}  // namespace kvblend::store
