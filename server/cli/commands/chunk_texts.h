// The chunks that `chunks put` and `chunks prefetch` are given, and what stands before them in prompts.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/request.h"

namespace kvblend::server::cli {

struct ChunkTextFlags {
  std::vector<std::string> files;
  std::string jsonl;
  std::string system_text;
  std::string lead_in;
  bool isolated = false;

  Anchoring anchoring() const { return isolated ? Anchoring::kIsolated : Anchoring::kAnchored; }
};

/// `flags` must live as long as the command.
void AddChunkTextFlags(CLI::App& command, ChunkTextFlags& flags);

/// The chunks' texts: of the files, then of the JSON lines. kInvalidArgument: there are none, or a bad line.
absl::StatusOr<std::vector<std::string>> ReadChunkTexts(const ChunkTextFlags& flags);

}  // namespace kvblend::server::cli
