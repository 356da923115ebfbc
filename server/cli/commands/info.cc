// kvblend info: what an engine is and how full its store is.
#include <CLI/CLI.hpp>
#include <memory>

#include "absl/strings/str_format.h"
#include "engine/api/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"
#include "server/cli/request_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kExamples[] = R"(Examples:
  kvblend info
  kvblend info --server gpu-7:50051 --json | jq .store
)";

struct InfoFlags {
  Connection connection;
  bool json = false;
};

void PrintForPeople(const Info& info, std::ostream& out) {
  const EngineInfo& engine = info.engine;
  out << absl::StreamFormat("version       %s\n", engine.version)
      << absl::StreamFormat("model         %s (%s, %d layers, %d heads, %d KV heads of %d, vocabulary %d)\n",
                            engine.model_name, engine.model_architecture, engine.num_layers, engine.num_heads,
                            engine.num_kv_heads, engine.head_dim, engine.vocab_size)
      << absl::StreamFormat("fingerprint   %s\n", engine.model_fingerprint)
      << absl::StreamFormat("device        %s: %s\n", engine.device, engine.device_reason);
  if (info.device_memory.has_value()) {
    out << absl::StreamFormat("GPU memory    %s of %s in use\n", HumanBytes(info.device_memory->used_bytes),
                              HumanBytes(info.device_memory->total_bytes));
  }
  out << absl::StreamFormat("backend       %s\n", engine.backend)
      << absl::StreamFormat("context       %d tokens, pages of %d\n", engine.max_context_tokens,
                            engine.page_size)
      << absl::StreamFormat("batch         %d answers decoded together, of %d tokens\n",
                            engine.max_batch_size, engine.max_batch_tokens)
      << absl::StreamFormat("KV            %s; stored chunks %s, %s per token\n", engine.kv_dtype,
                            engine.chunk_format, HumanBytes(engine.chunk_bytes_per_token));
  if (engine.self_check_max_error >= 0) {
    out << absl::StreamFormat("self-check    passed, largest relative error %.2g\n",
                              engine.self_check_max_error);
  } else {
    out << "self-check    switched off\n";
  }
  const StoreSummary& store = info.store;
  out << absl::StreamFormat(
      "chunk store   %d chunks (%d pinned), %s of %s; %d lookups, %d hits, %d evictions\n", store.entries,
      store.pinned_entries, HumanBytes(store.used_bytes), HumanBytes(store.budget_bytes), store.lookups,
      store.hits, store.evictions);
  if (info.disk.has_value()) {
    const DiskSummary& disk = *info.disk;
    out << absl::StreamFormat(
        "on disk       %d chunks (%d pinned), %s of %s; %d read, %d evicted, %d damaged%s\n", disk.entries,
        disk.pinned_entries, HumanBytes(disk.used_bytes), HumanBytes(disk.quota_bytes), disk.hits,
        disk.evictions, disk.quarantined, disk.failing ? "; the disk is full or failing" : "");
  }
  if (info.redis.has_value()) {
    const RedisSummary& redis = *info.redis;
    out << absl::StreamFormat(
        "in Redis      %d of %d nodes work; %d hits, %d misses, %d without an answer, %d written, %d not, "
        "%d damaged\n",
        redis.nodes_working, redis.nodes, redis.hits, redis.misses, redis.lookup_errors, redis.puts,
        redis.put_failures, redis.damaged);
  }
  out << absl::StreamFormat("KV pages      %d of %d in use\n", info.pages_used, info.pages_total)
      << absl::StreamFormat("requests      %d running (%d decoding), %d waiting\n", info.requests_running,
                            info.sequences_decoding, info.requests_waiting)
      << std::flush;
}

absl::Status Run(const InfoFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<EngineClient> client,
                           context.make_client(flags.connection, context.cancellation, context.terminal));
  KVBLEND_ASSIGN_OR_RETURN(const Info info, client->GetInfo());
  if (flags.json) {
    context.terminal.PrintJson(ToJson(info));
  } else {
    PrintForPeople(info, context.terminal.out);
  }
  return absl::OkStatus();
}

}  // namespace

void AddInfoCommand(CLI::App& root, CommandContext& context) {
  CLI::App* command =
      root.add_subcommand("info", "Model, limits and chunk store of a server or of a model file");
  command->footer(kExamples);
  const auto flags = std::make_shared<InfoFlags>();
  AddConnectionFlags(*command, InProcess::kAllowed, flags->connection);
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return Run(*flags, context); }; });
}

}  // namespace kvblend::server::cli
