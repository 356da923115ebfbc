#include "server/cli/commands/chunks_prefetch.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/status_macros.h"
#include "server/cli/commands/chunk_texts.h"
#include "server/cli/flags.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] =
    R"(Returns as soon as the chunks are found; their KV may still be on its way.

Examples:
  kvblend chunks prefetch --system "Answer briefly." --lead-in $'Passages:\n\n' docs/*.txt
)";

struct PrefetchFlags {
  Connection connection;
  CallerFlags caller;
  ChunkTextFlags texts;
  bool json = false;
};

absl::Status Run(const PrefetchFlags& flags, CommandContext& context) {
  PrefetchChunksRequest request;
  ApplyFlags(flags.caller, request.caller);
  request.system_text = flags.texts.system_text;
  request.lead_in = flags.texts.lead_in;
  request.anchoring = flags.texts.anchoring();
  KVBLEND_ASSIGN_OR_RETURN(request.chunks, ReadChunkTexts(flags.texts));
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> client,
                           context.make_client(flags.connection, context.cancellation, context.terminal));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<PrefetchedChunk> chunks, client->PrefetchChunks(request));
  for (const PrefetchedChunk& chunk : chunks) {
    if (flags.json) {
      context.terminal.PrintJson(
          {{"key", chunk.key}, {"tier", Name(chunk.tier)}, {"num_tokens", chunk.num_tokens}});
    } else {
      context.terminal.out << absl::StreamFormat(
          "%s  %6d tokens  %s\n", chunk.key, chunk.num_tokens,
          chunk.tier == Tier::kNone ? "not stored" : absl::StrCat("from ", std::string(Name(chunk.tier))));
    }
  }
  const auto missing = std::count_if(chunks.begin(), chunks.end(),
                                     [](const PrefetchedChunk& chunk) { return chunk.tier == Tier::kNone; });
  if (missing == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(missing, " of ", chunks.size(), " chunks are not stored"));
}

}  // namespace

void AddChunksPrefetchCommand(CLI::App& chunks, CommandContext& context) {
  CLI::App* command = chunks.add_subcommand(
      "prefetch", "Bring stored chunks into main memory; exit code 3 when one is not stored");
  command->footer(kExamples);
  const auto flags = std::make_shared<PrefetchFlags>();
  AddConnectionFlags(*command, InProcess::kServerOnly, flags->connection);
  AddCallerFlags(*command, flags->caller);
  AddChunkTextFlags(*command, flags->texts);
  command->add_flag("--json", flags->json, "One JSON object per chunk");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
