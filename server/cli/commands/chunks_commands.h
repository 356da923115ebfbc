// Parts of `kvblend chunks`, for the sources of that command only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/command.h"
#include "server/cli/field_flags.h"

namespace kvblend::server::cli {

void AddChunksPutCommand(CLI::App& chunks, CommandContext& context);
void AddChunksPrefetchCommand(CLI::App& chunks, CommandContext& context);

/// The chunks that `put` and `prefetch` are given.
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
