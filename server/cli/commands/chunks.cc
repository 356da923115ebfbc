// kvblend chunks list|stat|rm|pin: looking after the chunk store of a server. `put` and `prefetch` are in
// files of their own.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/cli/commands/chunks_commands.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/config/value_checks.h"
#include "server/convert/enums.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kChunksExamples[] =
    R"(A chunk's label is that of the put that stored it first: putting it again changes nothing, so a label tells where
a chunk came from, and not who needs it still.

Examples:
  kvblend chunks put --system "Answer briefly." docs/*.txt
  kvblend chunks list
  kvblend chunks list --json | jq -r 'select(.last_used_unix_seconds < now - 30*86400).key' | kvblend chunks rm -
  kvblend chunks pin 9f0c...e1
)";

constexpr size_t kKeysPerCall = 1000;  // the most that the API takes at once

struct KeyFlags {
  Connection connection;
  std::string tenant_namespace;
  std::vector<std::string> keys;
  bool json = false;
  bool all = false;
  bool unpin = false;
  int64_t limit = 0;
};

// "-" stands for the words of standard input.
absl::StatusOr<std::vector<std::string>> ExpandKeys(const std::vector<std::string>& arguments) {
  std::vector<std::string> keys;
  for (const std::string& argument : arguments) {
    if (argument != "-") {
      keys.push_back(argument);
      continue;
    }
    KVBLEND_ASSIGN_OR_RETURN(const std::string input, ReadFileOrStdin("-"));
    const std::vector<std::string> words =
        absl::StrSplit(input, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
    keys.insert(keys.end(), words.begin(), words.end());
  }
  return keys;
}

std::string Age(double since_unix_seconds) {
  const double seconds =
      std::max(0.0, static_cast<double>(absl::ToUnixMillis(absl::Now())) / 1e3 - since_unix_seconds);
  if (seconds < 60) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 3600) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 86400) return absl::StrFormat("%.0f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

/// Prints chunks as a table whose header comes with the first row, or as JSON lines.
class ChunkPrinter {
 public:
  ChunkPrinter(bool json, Terminal& terminal) : json_(json), terminal_(terminal) {}

  void Print(const v1::ChunkInfo& chunk) {
    if (json_) {
      terminal_.PrintLine(MessageToJson(chunk));
      return;
    }
    if (std::exchange(header_due_, false)) {
      terminal_.out << absl::StreamFormat("%-64s  %6s  %8s  %-11s  %5s  %3s  %6s  %s\n", "key", "tokens",
                                          "size", "tier", "hits", "pin", "age", "label");
    }
    terminal_.out << absl::StreamFormat("%-64s  %6d  %8s  %-11s  %5d  %3s  %6s  %s\n", chunk.key(),
                                        chunk.num_tokens(), HumanBytes(chunk.size_bytes()),
                                        Name(chunk.tier()), chunk.hits(), chunk.pinned() ? "yes" : "no",
                                        Age(chunk.created_unix_seconds()), OnOneLine(chunk.label()));
  }

 private:
  const bool json_;
  Terminal& terminal_;
  bool header_due_ = true;
};

using Keys = google::protobuf::RepeatedPtrField<std::string>;

absl::Status Missing(const Keys& keys) {
  if (keys.empty()) return absl::OkStatus();
  std::string message = absl::StrCat("not in the store: ", keys[0]);
  if (keys.size() > 1) absl::StrAppend(&message, " and ", keys.size() - 1, " more");
  return absl::NotFoundError(message);
}

void Accumulate(const v1::StatChunksResponse& part, v1::StatChunksResponse& total) { total.MergeFrom(part); }
void Accumulate(const v1::DeleteChunksResponse& part, v1::DeleteChunksResponse& total) {
  const int64_t deleted = total.deleted() + part.deleted(), failed = total.failed() + part.failed();
  const std::string failure = total.failed() > 0 ? total.failure() : part.failure();
  total.MergeFrom(part);
  total.set_deleted(deleted);
  total.set_failed(failed);
  total.set_failure(failure);
}
void Accumulate(const v1::PinChunksResponse& part, v1::PinChunksResponse& total) {
  const int64_t changed = total.changed() + part.changed();
  total.MergeFrom(part);
  total.set_changed(changed);
}

/// Makes `call` about up to kKeysPerCall of the keys at a time; what it finds is put together.
template <typename Request, typename Response>
absl::StatusOr<Response> InBatches(const KeyFlags& flags, Calls& calls,
                                   absl::StatusOr<Response> (Calls::*call)(Request), Request request) {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ExpandKeys(flags.keys));
  request.set_namespace_(flags.tenant_namespace);
  Response total;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysPerCall) {
    const size_t end = std::min(begin + kKeysPerCall, keys.size());
    request.mutable_keys()->Assign(keys.begin() + begin, keys.begin() + end);
    KVBLEND_ASSIGN_OR_RETURN(const Response part, (calls.*call)(request));
    Accumulate(part, total);
  }
  return total;
}

absl::Status RunList(const KeyFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  ChunkPrinter printer(flags.json, context.terminal);
  v1::ListChunksRequest request;
  request.set_namespace_(flags.tenant_namespace);
  int64_t listed = 0;
  do {
    if (context.cancellation.requested()) return absl::CancelledError("interrupted");
    KVBLEND_ASSIGN_OR_RETURN(const v1::ListChunksResponse page, client.calls().List(request));
    for (const v1::ChunkInfo& chunk : page.chunks()) {
      printer.Print(chunk);
      if (++listed == flags.limit) break;
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && listed != flags.limit);
  context.terminal.out << std::flush;
  if (!flags.json && listed == 0) context.terminal.PrintNote("no chunks in this namespace");
  return absl::OkStatus();
}

absl::Status RunStat(const KeyFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const auto found,
                           InBatches(flags, client.calls(), &Calls::Stat, v1::StatChunksRequest()));
  ChunkPrinter printer(flags.json, context.terminal);
  for (const v1::ChunkInfo& chunk : found.chunks()) printer.Print(chunk);
  context.terminal.out << std::flush;
  return Missing(found.missing_keys());
}

template <typename Response>
absl::Status ReportChange(const Response& total, int64_t count, const char* verb, const KeyFlags& flags,
                          Terminal& terminal) {
  if (flags.json) {
    terminal.PrintLine(MessageToJson(total));
  } else {
    terminal.out << absl::StreamFormat("%d %s %s\n", count, count == 1 ? "chunk" : "chunks", verb)
                 << std::flush;
  }
  return Missing(total.missing_keys());
}

absl::Status RunRemove(const KeyFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  v1::DeleteChunksRequest request;
  request.set_namespace_(flags.tenant_namespace);
  request.set_all(flags.all);
  KVBLEND_ASSIGN_OR_RETURN(
      const v1::DeleteChunksResponse total,
      flags.all ? client.calls().Delete(request) : InBatches(flags, client.calls(), &Calls::Delete, request));
  absl::Status reported = ReportChange(total, total.deleted(), "removed", flags, context.terminal);
  if (total.failed() == 0) return reported;
  std::string message =
      absl::StrCat("not removed everywhere, so that they may be found again: ", total.failed_keys(0));
  if (total.failed() > 1) absl::StrAppend(&message, " and ", total.failed() - 1, " more");
  return absl::UnavailableError(absl::StrCat(message, ": ", total.failure()));
}

absl::Status RunPin(const KeyFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  v1::PinChunksRequest request;
  request.set_pinned(!flags.unpin);
  KVBLEND_ASSIGN_OR_RETURN(const v1::PinChunksResponse total,
                           InBatches(flags, client.calls(), &Calls::Pin, request));
  return ReportChange(total, total.changed(), flags.unpin ? "unpinned" : "pinned", flags, context.terminal);
}

Command<KeyFlags> AddKeyCommand(CLI::App& parent, CommandContext& context, const char* name, const char* help,
                                absl::Status (*run)(const KeyFlags&, CommandContext&)) {
  const Command<KeyFlags> command = AddCommand(parent, context, name, help, "", run);
  AddConnectionFlags(command.app, InProcess::kServerOnly, command.flags.connection);
  AddUnaryTimeoutFlag(command.app, command.flags.connection);
  command.app.add_option("--namespace", command.flags.tenant_namespace, "Namespace of the chunks")
      ->type_name("NAME")
      ->group("Connection");
  command.app.add_flag("--json", command.flags.json, "JSON, one object per line");
  return command;
}

}  // namespace

void AddChunksCommand(CLI::App& root, CommandContext& context) {
  constexpr char kKeysHelp[] = "Keys of 64 hex digits; - reads them from standard input";
  CLI::App* chunks =
      root.add_subcommand("chunks", "Precompute document chunks and look after the chunk store");
  chunks->footer(kChunksExamples);
  chunks->require_subcommand(1);
  AddChunksPutCommand(*chunks, context);
  AddChunksPrefetchCommand(*chunks, context);

  const auto list = AddKeyCommand(*chunks, context, "list", "All chunks of a namespace", RunList);
  list.app.add_option("--limit", list.flags.limit, "At most so many; default: all")
      ->check(WholeNumber("--limit", 1))
      ->type_name("N");

  const auto stat = AddKeyCommand(*chunks, context, "stat",
                                  "What is stored under some keys; exit code 3 when one is missing", RunStat);
  stat.app.add_option("keys", stat.flags.keys, kKeysHelp)->required();

  const auto remove = AddKeyCommand(
      *chunks, context, "rm",
      "Remove chunks; exit code 3 when one was missing, 4 when one could not be removed", RunRemove);
  auto* what = remove.app.add_option_group("Which chunks", "exactly one of these");
  what->add_option("keys", remove.flags.keys, kKeysHelp);
  what->add_flag("--all", remove.flags.all, "Every chunk of the namespace, pinned ones too");
  what->require_option(1);

  const auto pin = AddKeyCommand(*chunks, context, "pin", "Keep chunks from being evicted", RunPin);
  pin.app.add_option("keys", pin.flags.keys, kKeysHelp)->required();
  pin.app.add_flag("--unpin", pin.flags.unpin, "Let them be evicted again");
}

}  // namespace kvblend::server::cli
