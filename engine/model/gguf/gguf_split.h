// GGUF files in several parts: NAME-00001-of-00003.gguf, ... The first part holds the metadata, each of them
// some of the tensors, and the keys split.no (from 0), split.count and split.tensors.count. Internal to
// engine/model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// What a part says of itself.
struct SplitKeys {
  int64_t number = 0;  // from 0
  int64_t count = 1;   // 1: the file is whole
};

/// kInvalidArgument naming file and key where a key has a wrong type or range.
absl::StatusOr<SplitKeys> ReadSplitKeys(const GgufContents& contents, std::string_view name);

/// The paths of all parts, from that of the first. kInvalidArgument where `keys` are not those of a first
/// part, or where its name is not that of the first of so many.
absl::StatusOr<std::vector<std::string>> PathsOfParts(const std::string& first_path, const SplitKeys& keys);

struct GgufPart {
  std::string name;  // for messages
  GgufContents contents;
};

/// The whole of parts in their order, as if one file had held it: without the split.* keys. kInvalidArgument
/// naming the part that says it is another one, or of another count, or holds metadata of its own; kDataLoss
/// for a tensor in two parts, and where there are not as many tensors as the parts say. REQUIRES: one part or
/// more.
absl::StatusOr<GgufContents> JoinParts(std::vector<GgufPart> parts);

}  // namespace kvblend::model
