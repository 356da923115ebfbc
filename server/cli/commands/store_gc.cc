// kvblend store gc: removing entries from a folder of stored chunks that no server is using.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/api/engine.h"
#include "engine/store/disk/folder_cleanup.h"
#include "server/cli/command.h"
#include "server/cli/commands/store_commands.h"
#include "server/config/engine_flags.h"

namespace kvblend::server::cli {
namespace {

constexpr char kStoreGcExamples[] =
    R"(An entry is removed when it meets all of --older-than, --model, --other-models-than and --format that are given.
Then --max-bytes removes what saves the least computing per byte, the oldest first. Pinned entries stay, unless
--pinned is given.

Examples:
  kvblend store gc /var/lib/kvblend/chunks --older-than 30d
  kvblend store gc /var/lib/kvblend/chunks --other-models-than model.gguf --quarantine
  kvblend store gc /var/lib/kvblend/chunks --format int8 --pinned
  kvblend store gc /var/lib/kvblend/chunks --max-bytes 50GB --dry-run
)";

struct GcFlags {
  std::string folder;
  std::optional<int64_t> max_bytes;
  std::string older_than;
  std::string model;
  std::string other_models_than;
  std::string format;
  bool pinned = false;
  bool quarantine = false;
  bool dry_run = false;
  bool json = false;
};

/// "90s", "15m", "36h", "30d" or "4w".
absl::StatusOr<absl::Duration> ParseAge(const std::string& text) {
  constexpr std::pair<char, int64_t> kUnitSeconds[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}, {'w', 7 * 86400}};
  int64_t count = 0;
  if (!text.empty() && absl::SimpleAtoi(text.substr(0, text.size() - 1), &count) && count >= 0) {
    for (const auto& [unit, seconds] : kUnitSeconds) {
      if (text.back() == unit) return absl::Seconds(seconds) * count;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--older-than is '", text, "'; allowed: a whole number with s, m, h, d or w, such as 30d"));
}

absl::StatusOr<kernels::KvEncoding> ParseFormat(const std::string& text) {
  std::string allowed;
  for (uint8_t number = 0;; ++number) {
    const auto encoding = static_cast<kernels::KvEncoding>(number);
    const std::string name(kernels::Name(encoding));
    if (name == text) return encoding;
    if (name == "?") break;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--format is '", text, "'; allowed: ", allowed));
}

absl::StatusOr<store::CleanupOptions> OptionsOf(const GcFlags& flags, CommandContext& context) {
  store::CleanupOptions options;
  options.path = FolderPath(flags.folder);
  options.max_bytes = flags.max_bytes;
  if (flags.max_bytes.has_value() && *flags.max_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-bytes is ", *flags.max_bytes, "; allowed: 0 and up"));
  }
  if (!flags.older_than.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const absl::Duration age, ParseAge(flags.older_than));
    options.created_before = absl::Now() - age;
  }
  if (!flags.model.empty()) {
    const absl::StatusOr<kvblend::Digest> model = kvblend::DigestFromHex(flags.model);
    if (!model.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model is '", flags.model,
                       "'; allowed: a fingerprint of 64 hexadecimal digits, as `stats` shows it"));
    }
    options.model = *model;
  }
  if (!flags.other_models_than.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints,
                             ModelFingerprints(flags.other_models_than));
    for (const std::string& fingerprint : fingerprints) {
      KVBLEND_ASSIGN_OR_RETURN(const Digest digest, kvblend::DigestFromHex(fingerprint));
      options.other_models_than.push_back(digest);
    }
  }
  if (!flags.format.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(options.encoding, ParseFormat(flags.format));
  }
  options.pinned = flags.pinned;
  options.quarantine = flags.quarantine;
  options.dry_run = flags.dry_run;
  options.keep_going = [&context] { return !context.cancellation.requested(); };
  options.on_progress = ShowProgress(context.terminal, "Reading");
  return options;
}

absl::Status RunGc(const GcFlags& flags, CommandContext& context) {
  if (!flags.max_bytes.has_value() && flags.older_than.empty() && flags.model.empty() &&
      flags.other_models_than.empty() && flags.format.empty() && !flags.quarantine) {
    return absl::InvalidArgumentError(
        "nothing to remove: give --older-than, --model, --other-models-than, --format, --max-bytes or "
        "--quarantine");
  }
  store::CleanupResult result;
  {
    KVBLEND_ASSIGN_OR_RETURN(const store::CleanupOptions options, OptionsOf(flags, context));
    KVBLEND_ASSIGN_OR_RETURN(result, store::CleanUpFolder(options));
  }
  if (flags.json) {
    context.terminal.PrintJson({{"dry_run", flags.dry_run},
                                {"removed_entries", static_cast<int64_t>(result.removed.size())},
                                {"removed_bytes", result.removed_bytes},
                                {"removed_quarantined_files", result.quarantine.files},
                                {"removed_quarantined_bytes", result.quarantine.bytes},
                                {"removed_temporary_files", result.temporary.files},
                                {"removed_temporary_bytes", result.temporary.bytes},
                                {"kept_entries", result.kept_entries},
                                {"kept_bytes", result.kept_bytes},
                                {"kept_for_their_pin", result.kept_pinned},
                                {"damaged_entries", result.damaged}});
    return absl::OkStatus();
  }
  std::ostream& out = context.terminal.out;
  const char* removed = flags.dry_run ? "would remove" : "removed     ";
  out << absl::StreamFormat("%s  %d entries, %s\n", removed, result.removed.size(),
                            HumanBytes(result.removed_bytes));
  if (flags.quarantine) {
    out << absl::StreamFormat("%s  %d files in quarantine, %s\n", removed, result.quarantine.files,
                              HumanBytes(result.quarantine.bytes));
  }
  if (result.temporary.files > 0) {
    out << absl::StreamFormat("%s  %d temporary files, %s\n", removed, result.temporary.files,
                              HumanBytes(result.temporary.bytes));
  }
  out << absl::StreamFormat("%s  %d entries, %s", flags.dry_run ? "would keep  " : "kept        ",
                            result.kept_entries, HumanBytes(result.kept_bytes));
  if (result.kept_pinned > 0)
    out << absl::StreamFormat("; %d of them only for their pin", result.kept_pinned);
  out << '\n';
  if (result.damaged > 0) {
    out << absl::StreamFormat(
        "left alone    %d damaged entries; `kvblend store check --quarantine` moves them\n", result.damaged);
  }
  out << std::flush;
  return absl::OkStatus();
}

}  // namespace

void AddStoreGcCommand(CLI::App& store, CommandContext& context) {
  const auto [command, flags] = AddCommand<GcFlags>(
      store, context, "gc", "Remove entries; no server may be using the folder", kStoreGcExamples, RunGc);
  command.add_option("folder", flags.folder, "The folder of stored chunks")->required()->type_name("DIR");
  AsBytes(command.add_option(
      "--max-bytes", flags.max_bytes,
      "Most bytes that entries may take afterwards, such as 50GB (50 * 10^9 bytes) or 50GiB"));
  command
      .add_option("--older-than", flags.older_than,
                  "Remove entries stored longer ago than this, such as 30d, 12h or 4w")
      ->type_name("AGE");
  auto* model =
      command.add_option("--model", flags.model, "Remove entries of the model with this fingerprint");
  model->type_name("FINGERPRINT");
  command
      .add_option("--other-models-than", flags.other_models_than,
                  "Remove entries of all models except this file or folder")
      ->type_name("FILE")
      ->excludes(model);
  command
      .add_option("--format", flags.format,
                  "Remove entries stored in this format, such as int8; `stats` shows them")
      ->type_name("FORMAT");
  command.add_flag("--pinned", flags.pinned, "Remove pinned entries too, where the conditions meet them");
  command.add_flag("--quarantine", flags.quarantine, "Also remove the damaged entries in quarantine");
  command.add_flag("--dry-run", flags.dry_run,
                   "Only tell what would be removed; safe while a server uses the folder");
  command.add_flag("--json", flags.json, "One JSON object");
}

}  // namespace kvblend::server::cli
