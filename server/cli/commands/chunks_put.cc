#include "server/cli/commands/chunks_put.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/status_macros.h"
#include "server/cli/commands/chunk_texts.h"
#include "server/cli/flags.h"
#include "server/cli/request_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] =
    R"(A prompt finds a chunk when it places the same text behind the same system text and lead-in.

Examples:
  kvblend chunks put --system "Answer briefly." --lead-in $'Passages:\n\n' docs/*.txt
  kvblend chunks put --jsonl corpus.jsonl --label corpus-2026-11 --pin
)";

// A corpus is sent in batches, so that each stays far below the server's limits.
constexpr size_t kChunksPerBatch = 64;
constexpr size_t kBytesPerBatch = size_t{1} << 20;

struct PutFlags {
  Connection connection;
  CallerFlags caller;
  ChunkTextFlags texts;
  std::string label;
  bool pin = false;
  bool json = false;
};

/// Sends batches and adds up what comes back.
class Putter {
 public:
  Putter(const PutFlags& flags, EngineClient& client, Terminal& terminal, size_t total)
      : flags_(flags), client_(client), terminal_(terminal), total_(total), bar_(terminal, "Precomputing") {}

  absl::Status Put(std::vector<std::string> chunks) {
    PutChunksRequest request;
    ApplyFlags(flags_.caller, request.caller);
    request.system_text = flags_.texts.system_text;
    request.lead_in = flags_.texts.lead_in;
    request.anchoring = flags_.texts.anchoring();
    request.chunks = std::move(chunks);
    request.label = flags_.label;
    request.pin = flags_.pin;
    const auto before = static_cast<int32_t>(done_);
    return client_.PutChunks(request, [&](PutChunkProgress progress) {
      // Counted over all batches: to the user it is one corpus.
      progress.index += before;
      progress.done += before;
      progress.total = static_cast<int32_t>(total_);
      Report(progress);
    });
  }

  void Summarize() {
    bar_.Clear();
    terminal_.PrintNote(
        absl::StrFormat("%d of %d chunks, %d tokens: %d computed in %s, %d were there already", done_, total_,
                        tokens_, done_ - present_, HumanSeconds(compute_seconds_), present_));
  }

 private:
  void Report(const PutChunkProgress& progress) {
    ++done_;
    tokens_ += progress.num_tokens;
    present_ += progress.already_present ? 1 : 0;
    compute_seconds_ += progress.compute_seconds;
    bar_.Clear();
    if (flags_.json) {
      terminal_.PrintJson(ToJson(progress));
    } else {
      terminal_.out << absl::StreamFormat("%s  %6d tokens  %s\n", progress.key, progress.num_tokens,
                                          progress.already_present ? "there already"
                                                                   : HumanSeconds(progress.compute_seconds))
                    << std::flush;
    }
    bar_.Update(static_cast<int64_t>(done_), static_cast<int64_t>(total_), absl::StrCat(tokens_, " tokens"));
  }

  const PutFlags& flags_;
  EngineClient& client_;
  Terminal& terminal_;
  const size_t total_;
  ProgressBar bar_;
  size_t done_ = 0;
  size_t present_ = 0;
  int64_t tokens_ = 0;
  double compute_seconds_ = 0;
};

absl::Status Run(const PutFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(std::vector<std::string> chunks, ReadChunkTexts(flags.texts));
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> client,
                           context.make_client(flags.connection, context.cancellation, context.terminal));
  Putter putter(flags, *client, context.terminal, chunks.size());
  absl::Status status;
  std::vector<std::string> batch;
  size_t batch_bytes = 0;
  for (size_t i = 0; i < chunks.size() && status.ok(); ++i) {
    batch_bytes += chunks[i].size();
    batch.push_back(std::move(chunks[i]));
    if (batch.size() < kChunksPerBatch && batch_bytes < kBytesPerBatch && i + 1 < chunks.size()) continue;
    status = putter.Put(std::exchange(batch, {}));
    batch_bytes = 0;
  }
  putter.Summarize();
  return status;
}

}  // namespace

void AddChunksPutCommand(CLI::App& chunks, CommandContext& context) {
  CLI::App* command =
      chunks.add_subcommand("put", "Compute chunks ahead of the prompts that use them; prints their keys");
  command->footer(kExamples);
  const auto flags = std::make_shared<PutFlags>();
  AddConnectionFlags(*command, InProcess::kServerOnly, flags->connection);
  AddCallerFlags(*command, flags->caller);
  AddChunkTextFlags(*command, flags->texts);
  command->add_option("--label", flags->label, "Free text shown by list")->type_name("TEXT");
  command->add_flag("--pin", flags->pin, "Never evict these chunks");
  command->add_flag("--json", flags->json, "One JSON object per chunk");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
