// kvblend chunks put.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/commands/chunks_commands.h"
#include "server/cli/flags.h"
#include "server/cli/message_json.h"

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

/// Sends batches and adds up what comes back.
class Putter {
 public:
  /// `request` has everything but the chunks.
  Putter(const PutFlags& flags, v1::PutChunksRequest request, Client& client, Terminal& terminal,
         size_t total)
      : flags_(flags),
        request_(std::move(request)),
        client_(client),
        terminal_(terminal),
        total_(total),
        bar_(terminal, "Precomputing") {}

  absl::Status Put(const std::vector<std::string>& chunks) {
    request_.mutable_chunks()->Assign(chunks.begin(), chunks.end());
    const auto before = static_cast<int32_t>(done_);
    return client_.Put(request_, flags_.caller.deadline(), [&](v1::PutChunkProgress progress) {
      // Counted over all batches: to the user it is one corpus.
      progress.set_index(progress.index() + before);
      progress.set_done(progress.done() + before);
      progress.set_total(static_cast<int32_t>(total_));
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
  void Report(const v1::PutChunkProgress& progress) {
    ++done_;
    tokens_ += progress.num_tokens();
    present_ += progress.already_present() ? 1 : 0;
    compute_seconds_ += progress.compute_seconds();
    bar_.Clear();
    if (flags_.json) {
      terminal_.PrintLine(ToJson(progress));
    } else {
      terminal_.out << absl::StreamFormat("%s  %6d tokens  %s\n", progress.key(), progress.num_tokens(),
                                          progress.already_present()
                                              ? "there already"
                                              : HumanSeconds(progress.compute_seconds()))
                    << std::flush;
    }
    bar_.Update(static_cast<int64_t>(done_), static_cast<int64_t>(total_), absl::StrCat(tokens_, " tokens"));
  }

  const PutFlags& flags_;
  v1::PutChunksRequest request_;
  Client& client_;
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
  v1::PutChunksRequest request;
  KVBLEND_RETURN_IF_ERROR(flags.fields.Apply(request));
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  Putter putter(flags, std::move(request), client, context.terminal, chunks.size());
  absl::Status status;
  std::vector<std::string> batch;
  size_t batch_bytes = 0;
  for (size_t i = 0; i < chunks.size() && status.ok(); ++i) {
    batch_bytes += chunks[i].size();
    batch.push_back(std::move(chunks[i]));
    if (batch.size() < kChunksPerCall && batch_bytes < kBytesPerCall && i + 1 < chunks.size()) continue;
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
  command->footer(kChunksPutExamples);
  const auto flags = std::make_shared<PutFlags>();
  AddConnectionFlags(*command, InProcess::kServerOnly, flags->connection);
  const google::protobuf::Descriptor& message = *v1::PutChunksRequest::descriptor();
  AddCallerFlags(*command, message, flags->fields, flags->caller);
  AddChunkTextFlags(*command, message, flags->fields, flags->texts);
  flags->fields.Add(*command, message, "Options", kPutFlags);
  command->add_flag("--json", flags->json, "One JSON object per chunk");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
