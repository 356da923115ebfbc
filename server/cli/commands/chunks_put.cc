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

constexpr FieldFlag kPutFlags[] = {
    {"--label", "label", "Free text shown by list; of a chunk that is there already, the first one stays",
     "TEXT"},
    {"--pin", "pin", "Never evict these chunks", ""}};

struct PutFlags {
  Connection connection;
  CallerFlags caller;
  FieldFlags fields;  // of v1::PutChunksRequest
  ChunkTextFlags texts;
  bool json = false;
};

/// Which of the chunks that were there already have another label than the one that was given. A label stays
/// as the first put has set it.
class LabelCheck {
 public:
  LabelCheck(Client& client, const v1::PutChunksRequest& request) : client_(client), label_(request.label()) {
    stat_.set_namespace_(request.namespace_());
  }

  void AddPresent(const std::string& key) {
    if (!label_.empty()) stat_.add_keys(key);
  }
  /// Asks for those that were added since. That the answer fails is no error of the put.
  void EndBatch() {
    if (stat_.keys().empty()) return;
    const absl::StatusOr<v1::StatChunksResponse> known = client_.calls().Stat(stat_);
    stat_.clear_keys();
    if (!known.ok()) return;
    for (const v1::ChunkInfo& chunk : known->chunks()) {
      if (chunk.label() == label_) continue;
      if (num_others_++ == 0) first_ = chunk;
    }
  }
  int64_t num_others() const { return num_others_; }
  std::string Describe() const {
    return absl::StrCat(Counted(num_others_, "chunk"), num_others_ == 1 ? " was" : " were",
                        " there already with another label, which stays: ", first_.key(), " has \"",
                        OnOneLine(first_.label()), "\"");
  }

 private:
  Client& client_;
  const std::string label_;
  v1::StatChunksRequest stat_;
  int64_t num_others_ = 0;
  v1::ChunkInfo first_;
};

absl::Status Run(const PutFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(std::vector<std::string> chunks, ReadChunkTexts(flags.texts));
  v1::PutChunksRequest request;
  KVBLEND_RETURN_IF_ERROR(flags.fields.Apply(request));
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  LabelCheck labels(client, request);
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
    if (progress.already_present()) labels.AddPresent(progress.key());
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
    labels.EndBatch();
    request.clear_chunks();
    batch_bytes = 0;
  }
  bar.Clear();
  if (done == 0 && !status.ok()) return status;
  terminal.PrintNote(absl::StrFormat("%d of %d chunks, %d tokens: %d computed in %s, %d were there already",
                                     done, total, tokens, done - present, HumanSeconds(compute_seconds),
                                     present));
  if (labels.num_others() > 0) terminal.PrintWarning(labels.Describe());
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
