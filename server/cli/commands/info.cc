// kvblend info: what an engine is and how full its store is.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"
#include "server/cli/tier_stats.h"
#include "server/convert/enums.h"
#include "server/convert/message_json.h"

namespace kvblend::server::cli {
namespace {

constexpr char kInfoExamples[] = R"(Examples:
  kvblend info
  kvblend info --server gpu-7:50051 --json | jq .store
)";

struct InfoFlags {
  Connection connection;
  bool json = false;
};

void PrintTier(const v1::TierInfo& tier, std::ostream& out) {
  const auto stat = [&](const char* name) { return TierStat(tier, name); };
  if (tier.tier() == v1::TIER_DISK) {
    out << absl::StreamFormat(
        "on disk       %d chunks (%d pinned), %s of %s; %d read, %d evicted, %d damaged%s\n", stat("entries"),
        stat("pinned_entries"), HumanBytes(stat("bytes")), HumanBytes(stat("quota_bytes")), stat("opens"),
        stat("evictions"), stat("quarantined"), tier.failing() ? "; the disk is full or failing" : "");
  } else if (tier.tier() == v1::TIER_REDIS) {
    out << absl::StreamFormat(
        "in Redis      %d of %d nodes work; %d hits, %d misses, %d without an answer, %d written, %d not, "
        "%d damaged\n",
        stat("nodes_working"), stat("nodes"), stat("hits"), stat("misses"), stat("lookup_errors"),
        stat("puts"), stat("put_failures"), stat("damaged"));
  } else {
    out << absl::StreamFormat("%-13s %s\n", Name(tier.tier()), tier.failing() ? "failing" : "works");
  }
}

void PrintForPeople(const v1::GetInfoResponse& info, std::ostream& out) {
  const v1::ModelInfo& model = info.model();
  const v1::DeviceInfo& device = info.device();
  const v1::KvFormat& kv_format = info.kv_format();
  const v1::StoreInfo& store = info.store();
  const v1::Load& load = info.load();
  out << absl::StreamFormat("version       %s\n", info.version())
      << absl::StreamFormat("model         %s (%s, %d layers, %d heads, %d KV heads of %d, vocabulary %d)\n",
                            model.name(), model.architecture(), model.num_layers(), model.num_heads(),
                            model.num_kv_heads(), model.head_dim(), model.vocab_size())
      << absl::StreamFormat("fingerprint   %s\n", model.fingerprint())
      << absl::StreamFormat("device        %s: %s\n", device.device(), device.reason());
  if (device.memory_total_bytes() > 0) {
    out << absl::StreamFormat("GPU memory    %s of %s in use\n", HumanBytes(device.memory_used_bytes()),
                              HumanBytes(device.memory_total_bytes()));
  }
  out << absl::StreamFormat("backend       %s\n", info.backend())
      << absl::StreamFormat("context       %d tokens, pages of %d\n", info.limits().max_context_tokens(),
                            kv_format.page_size())
      << absl::StreamFormat("batch         %d answers decoded together, of %d tokens\n",
                            info.limits().max_batch_size(), info.limits().max_batch_tokens())
      << absl::StreamFormat("KV            %s; stored chunks %s, %s per token\n", kv_format.dtype(),
                            kv_format.chunk_format(), HumanBytes(kv_format.chunk_bytes_per_token()))
      << absl::StreamFormat("correction    %s\n", kv_format.correction().empty()
                                                      ? "none learned: stored KV is placed as it is"
                                                      : absl::StrCat("version ", kv_format.correction()));
  if (info.self_check_max_error() >= 0) {
    out << absl::StreamFormat("self-check    passed, largest relative error %.2g\n",
                              info.self_check_max_error());
  } else {
    out << "self-check    switched off\n";
  }
  if (info.totals_left_out()) {
    out << absl::StreamFormat("chunk store   of %s\n", HumanBytes(store.budget_bytes()))
        << absl::StreamFormat("KV pages      %d\n", load.pages_total())
        << "load          told to admins only: it sums over all tenants\n"
        << std::flush;
    return;
  }
  out << absl::StreamFormat(
      "chunk store   %d chunks (%d pinned), %s of %s; of %d chunks of prompts %d found; %d evictions\n",
      store.entries(), store.pinned_entries(), HumanBytes(store.used_bytes()),
      HumanBytes(store.budget_bytes()), store.prompt_chunks(), store.prompt_chunks_found(),
      store.evictions());
  for (const v1::TierInfo& tier : info.tiers()) PrintTier(tier, out);
  out << absl::StreamFormat("KV pages      %d of %d in use, %d kept between turns\n", load.pages_used(),
                            load.pages_total(), load.pages_kept())
      << absl::StreamFormat("requests      %d running (%d decoding), %d waiting", load.requests_running(),
                            load.sequences_decoding(), load.requests_waiting());
  if (load.requests_waiting() > 0) {
    out << absl::StreamFormat(" (%d tokens, about %.1f s)", load.tokens_waiting(),
                              load.predicted_wait_seconds());
  }
  out << absl::StreamFormat("; %d tokens of answers decoded\n", load.decoded_tokens()) << std::flush;
}

absl::Status Run(const InfoFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, client.calls().GetInfo({}));
  if (flags.json) {
    context.terminal.PrintLine(MessageToJson(info));
  } else {
    PrintForPeople(info, context.terminal.out);
  }
  return absl::OkStatus();
}

}  // namespace

void AddInfoCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<InfoFlags>(
      root, context, "info", "Model, limits and chunk store of a server or of a model file", kInfoExamples,
      Run);
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  command.add_flag("--json", flags.json, "One JSON object");
}

}  // namespace kvblend::server::cli
