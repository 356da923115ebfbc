// kvblend chunks prefetch.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/commands/chunks_commands.h"
#include "server/cli/flags.h"
#include "server/convert/enums.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kChunksPrefetchExamples[] =
    R"(Returns as soon as the chunks are found; their KV may still be on its way.

Examples:
  kvblend chunks prefetch --system "Answer briefly." --lead-in $'Passages:\n\n' docs/*.txt
)";

constexpr FieldFlag kPrefetchFlags[] = {
    {"--read-namespace", "read_namespaces",
     "Look for chunks in this namespace as well, if they are not in one's own; repeat for more", "NAME"}};

struct PrefetchFlags {
  Connection connection;
  FieldFlags fields;  // of v1::PrefetchChunksRequest
  ChunkTextFlags texts;
  bool json = false;
};

absl::Status Run(const PrefetchFlags& flags, CommandContext& context) {
  v1::PrefetchChunksRequest request;
  KVBLEND_RETURN_IF_ERROR(flags.fields.Apply(request));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadChunkTexts(flags.texts));
  request.mutable_chunks()->Assign(texts.begin(), texts.end());
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const v1::PrefetchChunksResponse response, client.calls().Prefetch(request));
  int missing = 0, refused = 0;
  for (const v1::PrefetchedChunk& chunk : response.chunks()) {
    const bool stored = chunk.tier() != v1::TIER_UNSPECIFIED;
    missing += stored ? 0 : 1;
    refused += chunk.refusal().empty() ? 0 : 1;
    if (flags.json) {
      context.terminal.PrintLine(MessageToJson(chunk));
    } else {
      context.terminal.out << absl::StreamFormat("%s  %6d tokens  %s\n", chunk.key(), chunk.num_tokens(),
                                                 stored                    ? "from " + Name(chunk.tier())
                                                 : chunk.refusal().empty() ? "not stored"
                                                                           : chunk.refusal());
    }
  }
  if (missing == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(missing, " of ", response.chunks_size(), " chunks are not stored",
                                          refused > 0 ? ", or too large for the server" : ""));
}

}  // namespace

void AddChunksPrefetchCommand(CLI::App& chunks, CommandContext& context) {
  const auto [command, flags] = AddCommand<PrefetchFlags>(
      chunks, context, "prefetch", "Bring stored chunks into main memory; exit code 3 when one is not stored",
      kChunksPrefetchExamples, Run);
  AddConnectionFlags(command, InProcess::kServerOnly, flags.connection);
  const google::protobuf::Descriptor& message = *v1::PrefetchChunksRequest::descriptor();
  AddCallerFields(command, message, flags.fields);
  AddUnaryTimeoutFlag(command, flags.connection);
  AddChunkTextFlags(command, message, flags.fields, flags.texts);
  flags.fields.Add(command, message, "Options", kPrefetchFlags);
  command.add_flag("--json", flags.json, "One JSON object per chunk");
}

}  // namespace kvblend::server::cli
