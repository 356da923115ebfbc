// Reads and checks the header of an entry's file. Private to this folder.
#pragma once

#include "absl/status/statusor.h"
#include "engine/api/chunk_key.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store::internal {

/// kDataLoss naming the file: damaged, of another key than `key`, or the file is longer or shorter than the
/// header says. kUnimplemented: of a newer version, or so it says. Otherwise the file could not be read.
absl::StatusOr<EntryHeader> ReadHeader(File& file, const ChunkKey& key);

}  // namespace kvblend::store::internal
