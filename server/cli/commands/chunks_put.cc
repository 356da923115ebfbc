#include "server/cli/commands/chunks_put.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/status_macros.h"
#include "server/cli/files.h"
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
  std::vector<std::string> files;
  std::string jsonl;
  std::string system_text;
  std::string lead_in;
  bool isolated = false;
  std::string label;
  bool pin = false;
  bool json = false;
};

absl::Status ReadJsonLines(const std::string& path, std::vector<std::string>& chunks) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(path));
  int number = 0;
  const std::vector<std::string> lines = absl::StrSplit(content, '\n');
  for (const std::string& line : lines) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nlohmann::json::parse(line, /*cb=*/nullptr, /*allow_exceptions=*/false);
    if (json.is_string()) {
      chunks.push_back(json.get<std::string>());
    } else if (json.is_object() && json.contains("text") && json["text"].is_string()) {
      chunks.push_back(json["text"].get<std::string>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, " must be a JSON string or an object with a string \"text\""));
    }
  }
  return absl::OkStatus();
}

/// Sends batches and adds up what comes back.
class Putter {
 public:
  Putter(const PutFlags& flags, EngineClient& client, Terminal& terminal, size_t total)
      : flags_(flags), client_(client), terminal_(terminal), total_(total), bar_(terminal, "Precomputing") {}

  absl::Status Put(std::vector<std::string> chunks) {
    PutChunksRequest request;
    ApplyFlags(flags_.caller, request.caller);
    request.system_text = flags_.system_text;
    request.lead_in = flags_.lead_in;
    request.anchoring = flags_.isolated ? Anchoring::kIsolated : Anchoring::kAnchored;
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
  std::vector<std::string> chunks;
  for (const std::string& path : flags.files) {
    KVBLEND_ASSIGN_OR_RETURN(chunks.emplace_back(), ReadFileOrStdin(path));
  }
  if (!flags.jsonl.empty()) KVBLEND_RETURN_IF_ERROR(ReadJsonLines(flags.jsonl, chunks));
  if (chunks.empty())
    return absl::InvalidArgumentError("no chunks: name files, or a --jsonl file that is not empty");
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
  command->add_option("files", flags->files,
                      "Files that hold one chunk each; - reads one from standard input");
  command->add_option("--jsonl", flags->jsonl, "A chunk per line: a JSON string or an object with \"text\"")
      ->type_name("FILE");
  auto* system = command->add_option("--system", flags->system_text, "System text of the prompts to come");
  system->type_name("TEXT");
  auto* lead_in =
      command->add_option("--lead-in", flags->lead_in, "Text before the chunks in the prompts to come");
  lead_in->type_name("TEXT");
  command
      ->add_flag("--isolated", flags->isolated,
                 "Compute chunks by themselves, not behind system text and lead-in")
      ->excludes(system)
      ->excludes(lead_in);
  command->add_option("--label", flags->label, "Free text shown by list")->type_name("TEXT");
  command->add_flag("--pin", flags->pin, "Never evict these chunks");
  command->add_flag("--json", flags->json, "One JSON object per chunk");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
