// The chunks of a corpus as JSON Lines, for the retriever that will place them in prompts.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kv/atomic_file.h"
#include "kvblend/v1/chunks.pb.h"
#include "server/cli/precompute/corpus_reader.h"
#include "server/files/descriptor.h"

namespace kvblend::server::cli {

/// Written beside `path` and put in its place by Finish (engine/kv/atomic_file.h), so that whoever reads it
/// sees all of a corpus, of one command. What is not finished is removed. A pipe or a device is written as it
/// is, and so is `standard_output` for "-". Errors name path and reason: kUnavailable while another process
/// writes the file; kFailedPrecondition where the disk is full or fails; otherwise kInvalidArgument.
class ChunkFile {
 public:
  /// `standard_output` must outlive it.
  static absl::StatusOr<std::unique_ptr<ChunkFile>> Create(const std::string& path,
                                                           std::ostream& standard_output);
  ChunkFile(const ChunkFile&) = delete;
  ChunkFile& operator=(const ChunkFile&) = delete;

  absl::Status Write(const Document& document, const v1::DocumentChunk& chunk, std::string_view text);
  absl::Status Finish();

 private:
  explicit ChunkFile(const std::string& path) : path_(path) {}

  const std::string path_;
  // One of these:
  std::optional<kv::FileReplacement> replacement_;
  server::Descriptor pipe_;
  std::ostream* stream_ = nullptr;
};

}  // namespace kvblend::server::cli
