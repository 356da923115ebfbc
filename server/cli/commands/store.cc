// kvblend store check|stats: looking at a folder of stored chunks without a server. `gc` is in store_gc.cc.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/store/disk/folder_audit.h"
#include "server/cli/command.h"
#include "server/cli/commands/store_commands.h"
#include "server/config/value_checks.h"

namespace kvblend::server::cli {
namespace {

using store::AuditedEntry;
using store::AuditFinding;
using store::Finding;
using store::FolderAudit;

constexpr char kStoreExamples[] =
    R"(DIR is what a server has as --chunk-disk-path. Looking is safe while a server uses it; moving and removing
need it stopped.

Examples:
  kvblend store stats /var/lib/kvblend/chunks
  kvblend store check /var/lib/kvblend/chunks || echo damaged
  kvblend store gc /var/lib/kvblend/chunks --other-models-than model.gguf --dry-run
)";

constexpr char kCheckExamples[] =
    R"(Exit code 5: damage was found. A server finds damaged entries by itself, and treats them as missing.

Examples:
  kvblend store check /var/lib/kvblend/chunks
  kvblend store check /var/lib/kvblend/chunks --quarantine
)";

constexpr char kStatsExamples[] = R"(Examples:
  kvblend store stats /var/lib/kvblend/chunks
  kvblend store stats /var/lib/kvblend/chunks --json | jq '.groups[] | select(.pinned_entries > 0)'
)";

struct StoreFlags {
  std::string folder;
  int threads = store::AuditOptions().num_threads;
  bool quarantine = false;
  bool json = false;
};

absl::StatusOr<FolderAudit> Audit(const StoreFlags& flags, bool read_sections, const char* label,
                                  CommandContext& context) {
  store::AuditOptions options;
  options.path = FolderPath(flags.folder);
  options.read_sections = read_sections;
  options.quarantine = flags.quarantine;
  options.num_threads = flags.threads;
  options.keep_going = [&context] { return !context.cancellation.requested(); };
  options.on_progress = ShowProgress(context.terminal, label);
  return store::AuditFolder(options);
}

constexpr std::pair<Finding, const char*> kFindings[] = {{Finding::kDamaged, "damaged"},
                                                         {Finding::kUnreadable, "unreadable"},
                                                         {Finding::kNewer, "newer"},
                                                         {Finding::kForeign, "foreign"},
                                                         {Finding::kLoosePin, "loose pin"}};

const char* NameOf(Finding finding) {
  const auto* found = std::find_if(std::begin(kFindings), std::end(kFindings),
                                   [&](const auto& row) { return row.first == finding; });
  return found == std::end(kFindings) ? "unknown" : found->second;
}

OrderedJson ToJson(const store::FileTotals& totals) {
  return {{"files", totals.files}, {"bytes", totals.bytes}};
}

// --- check ------------------------------------------------------------------------------------------------

absl::Status RunCheck(const StoreFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const FolderAudit audit,
                           Audit(flags, /*read_sections=*/true, "Checking", context));
  Terminal& terminal = context.terminal;
  OrderedJson findings = OrderedJson::array();
  int64_t quarantined = 0;
  for (const AuditFinding& found : audit.findings) {
    quarantined += found.quarantined ? 1 : 0;
    if (flags.json) {
      findings.push_back({{"finding", NameOf(found.finding)},
                          {"path", found.path},
                          {"reason", found.reason},
                          {"bytes", found.bytes},
                          {"quarantined", found.quarantined}});
    } else {
      terminal.out << absl::StreamFormat("%-10s  %s%s%s%s\n", NameOf(found.finding), OnOneLine(found.path),
                                         found.reason.empty() ? "" : ": ", OnOneLine(found.reason),
                                         found.quarantined ? "; moved to quarantine" : "");
    }
  }
  const int64_t damaged = audit.Count(Finding::kDamaged);
  const int64_t unreadable = audit.Count(Finding::kUnreadable);
  if (flags.json) {
    terminal.PrintJson({{"sound_entries", static_cast<int64_t>(audit.entries.size())},
                        {"damaged_entries", damaged},
                        {"unreadable_entries", unreadable},
                        {"newer_entries", audit.Count(Finding::kNewer)},
                        {"foreign_files", audit.Count(Finding::kForeign)},
                        {"read_bytes", audit.read_bytes},
                        {"findings", findings}});
  } else {
    terminal.out << absl::StreamFormat(
                        "%d sound, %d damaged, %d unreadable, %d of a newer version; %s read\n",
                        audit.entries.size(), damaged, unreadable, audit.Count(Finding::kNewer),
                        HumanBytes(audit.read_bytes))
                 << std::flush;
  }
  if (damaged + unreadable == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(damaged + unreadable, damaged + unreadable == 1 ? " entry" : " entries", " of ",
                   FolderPath(flags.folder), " cannot be used",
                   quarantined == damaged ? "" : "; --quarantine moves the damaged ones out of the way"));
}

// --- stats ------------------------------------------------------------------------------------------------

/// Entries of one model, format and namespace.
struct Group {
  int64_t entries = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t pinned_entries = 0;
  int64_t pinned_bytes = 0;
  absl::Time oldest = absl::InfiniteFuture();
  absl::Time newest = absl::InfinitePast();

  void Add(const AuditedEntry& entry) {
    ++entries;
    tokens += entry.num_tokens;
    bytes += entry.bytes;
    pinned_entries += entry.pinned ? 1 : 0;
    pinned_bytes += entry.pinned ? entry.bytes : 0;
    oldest = std::min(oldest, entry.created);
    newest = std::max(newest, entry.created);
  }
};

/// Fingerprint, format, namespace.
using GroupName = std::tuple<std::string, std::string, std::string>;

std::string FormatName(const store::KvFormat& format) {
  return absl::StrFormat("%s %dx%dx%d", kernels::Name(format.encoding), format.num_layers,
                         format.num_kv_heads, format.head_dim);
}

std::string Age(absl::Time time, absl::Time now) {
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - time));
  if (seconds < 3600) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 2 * 86400) return absl::StrFormat("%.0f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

void PrintStats(const std::map<GroupName, Group>& groups, const FolderAudit& audit, std::ostream& out) {
  const absl::Time now = absl::Now();
  Group total;
  std::string model;
  for (const auto& [name, group] : groups) {
    const auto& [fingerprint, format, tenant_namespace] = name;
    if (fingerprint != model) {
      out << absl::StreamFormat("model %s\n", fingerprint)
          << absl::StreamFormat("  %-16s  %-20s  %9s  %11s  %9s  %7s  %7s  %7s\n", "format", "namespace",
                                "entries", "tokens", "size", "pinned", "oldest", "newest");
      model = fingerprint;
    }
    out << absl::StreamFormat("  %-16s  %-20s  %9d  %11d  %9s  %7d  %7s  %7s\n", format,
                              tenant_namespace.empty() ? "(default)" : OnOneLine(tenant_namespace),
                              group.entries, group.tokens, HumanBytes(group.bytes), group.pinned_entries,
                              Age(group.oldest, now), Age(group.newest, now));
    total.entries += group.entries;
    total.tokens += group.tokens;
    total.bytes += group.bytes;
    total.pinned_entries += group.pinned_entries;
  }
  out << absl::StreamFormat("total       %d entries, %d tokens, %s, %d pinned\n", total.entries, total.tokens,
                            HumanBytes(total.bytes), total.pinned_entries)
      << absl::StreamFormat("quarantine  %d files, %s\n", audit.quarantine.files,
                            HumanBytes(audit.quarantine.bytes))
      << absl::StreamFormat("temporary   %d files, %s; a server's start removes what one left behind\n",
                            audit.temporary.files, HumanBytes(audit.temporary.bytes));
  for (const auto& [finding, name] : kFindings) {
    if (const int64_t count = audit.Count(finding); count > 0) {
      out << absl::StreamFormat("%-10s  %d; see `kvblend store check`\n", name, count);
    }
  }
  out << std::flush;
}

OrderedJson StatsJson(const std::map<GroupName, Group>& groups, const FolderAudit& audit) {
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, group] : groups) {
    const auto& [fingerprint, format, tenant_namespace] = name;
    list.push_back({{"model_fingerprint", fingerprint},
                    {"format", format},
                    {"namespace", tenant_namespace},
                    {"entries", group.entries},
                    {"tokens", group.tokens},
                    {"bytes", group.bytes},
                    {"pinned_entries", group.pinned_entries},
                    {"pinned_bytes", group.pinned_bytes},
                    {"oldest_unix_seconds", absl::ToUnixSeconds(group.oldest)},
                    {"newest_unix_seconds", absl::ToUnixSeconds(group.newest)}});
  }
  return {{"groups", list},
          {"quarantine", ToJson(audit.quarantine)},
          {"temporary", ToJson(audit.temporary)},
          {"damaged_entries", audit.Count(Finding::kDamaged)},
          {"unreadable_entries", audit.Count(Finding::kUnreadable)},
          {"newer_entries", audit.Count(Finding::kNewer)},
          {"foreign_files", audit.Count(Finding::kForeign)},
          {"loose_pins", audit.Count(Finding::kLoosePin)}};
}

absl::Status RunStats(const StoreFlags& flags, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const FolderAudit audit,
                           Audit(flags, /*read_sections=*/false, "Reading", context));
  std::map<GroupName, Group> groups;
  for (const AuditedEntry& entry : audit.entries) {
    groups[{kvblend::ToHex(entry.model_fingerprint), FormatName(entry.format), entry.tenant_namespace}].Add(
        entry);
  }
  if (flags.json) {
    context.terminal.PrintJson(StatsJson(groups, audit));
  } else {
    PrintStats(groups, audit, context.terminal.out);
  }
  return absl::OkStatus();
}

Command<StoreFlags> AddLookingCommand(CLI::App& parent, CommandContext& context, const char* name,
                                      const char* help, const char* examples,
                                      absl::Status (*run)(const StoreFlags&, CommandContext&)) {
  const Command<StoreFlags> command = AddCommand(parent, context, name, help, examples, run);
  const auto& [app, flags] = command;
  app.add_option("folder", flags.folder, "The folder of stored chunks")->required()->type_name("DIR");
  app.add_option("--threads", flags.threads, "Threads that read")
      ->capture_default_str()
      ->check(WholeNumber("--threads", 1, 256))
      ->type_name("N");
  app.add_flag("--json", flags.json, "One JSON object");
  return command;
}

}  // namespace

std::string FolderPath(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::function<void(const store::AuditProgress&)> ShowProgress(Terminal& terminal, const char* label) {
  const auto bar = std::make_shared<ProgressBar>(terminal, label);
  return [bar](const store::AuditProgress& progress) {
    bar->Update(progress.done_entries, progress.total_entries, HumanBytes(progress.read_bytes));
  };
}

void AddStoreCommand(CLI::App& root, CommandContext& context) {
  CLI::App* store =
      root.add_subcommand("store", "Check, measure and clean a folder of stored chunks, without a server");
  store->footer(kStoreExamples);
  store->require_subcommand(1);
  const auto [check, check_flags] = AddLookingCommand(
      *store, context, "check", "Read every entry and compare every checksum", kCheckExamples, RunCheck);
  check.add_flag("--quarantine", check_flags.quarantine,
                 "Move damaged entries to the folder's quarantine; no server may be using it");
  AddLookingCommand(*store, context, "stats",
                    "What is stored, by model, format and namespace; reads headers only", kStatsExamples,
                    RunStats);
  AddStoreGcCommand(*store, context);
}

}  // namespace kvblend::server::cli
