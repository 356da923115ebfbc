// The chunks that `chunks put` and `chunks prefetch` are given, and what stands before them in prompts.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/field_flags.h"

namespace kvblend::server::cli {

struct ChunkTextFlags {
  std::vector<std::string> files;
  std::string jsonl;
};

/// `flags` and `fields` must live as long as the command. The texts before the chunks are fields of
/// `message`.
void AddChunkTextFlags(CLI::App& command, const google::protobuf::Descriptor& message, FieldFlags& fields,
                       ChunkTextFlags& flags);

/// The chunks' texts: of the files, then of the JSON lines. kInvalidArgument: there are none, or a bad line.
absl::StatusOr<std::vector<std::string>> ReadChunkTexts(const ChunkTextFlags& flags);

}  // namespace kvblend::server::cli
