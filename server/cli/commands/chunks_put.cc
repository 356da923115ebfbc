// kvblend chunks put.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/commands/chunks_commands.h"
#include "server/cli/flags.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kChunksPutExamples[] =
    R"(A prompt finds a chunk when it places the same text behind the same system text and lead-in.

Examples:
  kvblend chunks put --system "Answer briefly." --lead-in $'Passages:\n\n' docs/*.txt
  kvblend chunks put --jsonl corpus.jsonl --label corpus-2026-11 --pin
)";

// A corpus is sent in batches, so that each stays far below the server's limits.
constexpr size_t kChunksPerCall = 64;
constexpr size_t kBytesPerCall = size_t{1} << 20;

constexpr FieldFlag kPutFlags[] = {{"--label", "label", "Free text shown by list", "TEXT"},
                                   {"--pin", "pin", "Never evict these chunks", ""}};

struct PutFlags {
  Connection connection;
  CallerFlags caller;
  FieldFlags fields;  // of v1::PutChunksRequest
  ChunkTextFlags texts;
  bool json = false;
};

absl::Status Run(const PutFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(std::vector<std::string> chunks, ReadChunkTexts(flags.texts));
  v1::PutChunksRequest request;
  KVBLEND_RETURN_IF_ERROR(flags.fields.Apply(request));
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  Terminal& terminal = context.terminal;
  ProgressBar bar(terminal, "Precomputing");
  const auto total = static_cast<int32_t>(chunks.size());
  // Counted over all batches: to the user it is one corpus.
  int32_t done = 0;
  int32_t present = 0;
  int64_t tokens = 0;
  double compute_seconds = 0;
  const auto report = [&](const v1::PutChunkProgress& progress) {
    ++done;
    tokens += progress.num_tokens();
    present += progress.already_present() ? 1 : 0;
    compute_seconds += progress.compute_seconds();
    bar.Clear();
    if (flags.json) {
      terminal.PrintLine(MessageToJson(progress));
    } else {
      terminal.out << absl::StreamFormat("%s  %6d tokens  %s\n", progress.key(), progress.num_tokens(),
                                         progress.already_present()
                                             ? "there already"
                                             : HumanSeconds(progress.compute_seconds()))
                   << std::flush;
    }
    bar.Update(done, total, absl::StrCat(tokens, " tokens"));
  };
  absl::Status status;
  size_t batch_bytes = 0;
  for (size_t i = 0; i < chunks.size() && status.ok(); ++i) {
    batch_bytes += chunks[i].size();
    request.add_chunks(std::move(chunks[i]));
    if (static_cast<size_t>(request.chunks_size()) < kChunksPerCall && batch_bytes < kBytesPerCall &&
        i + 1 < chunks.size()) {
      continue;
    }
    status = client.Put(request, flags.caller.deadline(), [&, before = done](v1::PutChunkProgress progress) {
      progress.set_index(progress.index() + before);
      progress.set_done(progress.done() + before);
      progress.set_total(total);
      report(progress);
    });
    status = flags.caller.Explain(status);
    request.clear_chunks();
    batch_bytes = 0;
  }
  bar.Clear();
  if (done == 0 && !status.ok()) return status;
  terminal.PrintNote(absl::StrFormat("%d of %d chunks, %d tokens: %d computed in %s, %d were there already",
                                     done, total, tokens, done - present, HumanSeconds(compute_seconds),
                                     present));
  return status;
}

}  // namespace

void AddChunksPutCommand(CLI::App& chunks, CommandContext& context) {
  const auto [command, flags] = AddCommand<PutFlags>(
      chunks, context, "put", "Compute chunks ahead of the prompts that use them; prints their keys",
      kChunksPutExamples, Run);
  AddConnectionFlags(command, InProcess::kServerOnly, flags.connection);
  const google::protobuf::Descriptor& message = *v1::PutChunksRequest::descriptor();
  AddCallerFlags(command, message, flags.fields, flags.caller);
  AddChunkTextFlags(command, message, flags.fields, flags.texts);
  flags.fields.Add(command, message, "Options", kPutFlags);
  command.add_flag("--json", flags.json, "One JSON object per chunk");
}

}  // namespace kvblend::server::cli
