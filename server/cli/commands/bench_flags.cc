#include "server/cli/commands/bench_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/cli/flags.h"
#include "server/config/value_checks.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

/// Every combination of the lists that makes a difference.
absl::StatusOr<std::vector<BenchVariant>> CombinedRows(const BenchFlags& flags) {
  std::vector<BenchMode> modes;
  for (const std::string& name : flags.modes) {
    KVBLEND_ASSIGN_OR_RETURN(modes.emplace_back(), ParseName<BenchMode>("mode", name));
  }
  std::vector<v1::Policy> policies;
  for (const std::string& name : flags.policies) {
    KVBLEND_ASSIGN_OR_RETURN(const Policy policy, ParseName<Policy>("policy", name));
    policies.push_back(ToWire<v1::Policy>(policy));
  }
  std::vector<BenchRatio> ratios;
  for (const std::string& text : flags.ratios) {
    KVBLEND_ASSIGN_OR_RETURN(ratios.emplace_back(), ParseBenchRatio(text));
  }
  std::vector<v1::Anchoring> anchorings;
  if (flags.anchored || !flags.isolated) anchorings.push_back(v1::ANCHORING_ANCHORED);
  if (flags.isolated) anchorings.push_back(v1::ANCHORING_ISOLATED);
  std::vector<bool> corrections;
  for (const std::string& name : flags.corrections) {
    if (name != "on" && name != "off") {
      return absl::InvalidArgumentError(absl::StrCat("corrected is '", name, "'; allowed: on, off"));
    }
    corrections.push_back(name == "on");
  }
  return MakeVariants(modes, policies, ratios, anchorings, flags.query_layers, corrections);
}

absl::StatusOr<std::vector<BenchVariant>> NamedRows(const std::vector<std::string>& names) {
  std::vector<BenchVariant> rows;
  for (const std::string& name : names) {
    KVBLEND_ASSIGN_OR_RETURN(rows.emplace_back(), ParseRow(name));
    if (std::count(rows.begin(), rows.end(), rows.back()) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("row ", name, " is there twice"));
    }
  }
  return rows;
}

/// A list that is given with commas.
template <typename Value>
CLI::Option* AddList(CLI::App& command, const char* name, std::vector<Value>& values, const char* help,
                     const char* type) {
  CLI::Option* option = command.add_option(name, values, help)->delimiter(',')->type_name(type);
  return values.empty() ? option : option->capture_default_str();
}

/// Which questions are asked.
std::vector<const CLI::Option*> AddQuestionFlags(CLI::App& command, BenchFlags& flags) {
  return {
      command
          .add_option(
              "--data", flags.data,
              "JSON lists of {question, answers[], ctxs: [{title, text}]}; a table is printed for each file")
          ->type_name("FILE..."),
      command.add_option("--first", flags.first, "Begin with this question of each file, from 0")
          ->check(WholeNumber("--first", 0))
          ->capture_default_str()
          ->type_name("I"),
      command.add_option("--n", flags.n, "Questions of each file; default: all")
          ->check(WholeNumber("--n", 1))
          ->type_name("N"),
      command
          .add_option("--passages", flags.options.max_passages,
                      "Passages per question, from the first; default: all")
          ->check(WholeNumber("--passages", 1))
          ->type_name("K"),
      command
          .add_option("--shard", flags.shard,
                      "Ask only the I-th of N parts of these questions; see --resume and --merge")
          ->type_name("I/N"),
  };
}

/// The rows as combinations of lists.
std::vector<const CLI::Option*> AddCombinationFlags(CLI::App& command, BenchFlags& flags) {
  return {
      AddList(command, "--modes", flags.modes, "Any of full, prefix, reuse, blend", "MODE,..."),
      AddList(command, "--policy", flags.policies, "Policies for mode blend, a row for each", "NAME,..."),
      AddList(command, "--ratio", flags.ratios, "Ratios for mode blend, numbers or auto, a row for each",
              "R,..."),
      AddList(command, "--query-layers", flags.query_layers,
              "Policy query: layers of its pass, a row for each; 0: all", "N,...")
          ->check(WholeNumber("--query-layers", 0)),
      AddList(command, "--corrected", flags.corrections,
              "With the learned correction of stored KV or without: on, off or both, a row for each", "LIST"),
      command.add_flag("--anchored", flags.anchored,
                       "Use chunks computed behind system text and lead-in (default)"),
      command.add_flag("--isolated", flags.isolated,
                       "Use chunks computed by themselves; with --anchored too: rows for both"),
  };
}

/// How it is measured.
std::vector<const CLI::Option*> AddMeasuringFlags(CLI::App& command, BenchFlags& flags) {
  return {
      AddList(command, "--measure", flags.measures, "What to measure: any of ttft, kl, nll, f1", "WHAT,..."),
      command
          .add_option("--repeat", flags.options.repeats, "How often times are measured per question and row")
          ->check(WholeNumber("--repeat", 1, 1000))
          ->capture_default_str()
          ->type_name("N"),
      command
          .add_option("--kl-tokens", flags.options.kl_tokens,
                      "Over how many greedy tokens of full prefill rows are compared")
          ->check(WholeNumber("--kl-tokens", 1, 4096))
          ->capture_default_str()
          ->type_name("N"),
      command
          .add_option(
              "--namespace", flags.options.tenant_namespace,
              "Namespace in which the bench stores its chunks while it runs; with a key that has a namespace of its "
              "own, that one")
          ->capture_default_str()
          ->type_name("NAME"),
      command
          .add_option("--reference-cache", flags.reference_cache,
                      "Folder that keeps the results of full prefill, except its times, for later runs")
          ->type_name("DIR"),
      command
          .add_option(
              "--resume", flags.resume,
              "File for the results of each question; questions that it already has are not asked again")
          ->type_name("FILE"),
  };
}

}  // namespace

void AddBenchFlags(CLI::App& command, BenchFlags& flags) {
  flags.options.tenant_namespace = "kvblend-bench";
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  flags.measuring_options = AddQuestionFlags(command, flags);
  flags.measuring_options.push_back(AddList(
      command, "--rows", flags.rows,
      "Exactly these rows: full, prefix, cacheblend (as published), or reuse or a policy with :RATIO, "
      ":N-layers, :isolated, :uncorrected, :unspread",
      "ROW,..."));
  flags.combination_options = AddCombinationFlags(command, flags);
  command
      .add_option("--against", flags.against,
                  "Compare all rows with this one (which is added if need be): ratios of KL on the same "
                  "questions, with intervals")
      ->type_name("ROW");
  for (const auto& options : {flags.combination_options, AddMeasuringFlags(command, flags)}) {
    flags.measuring_options.insert(flags.measuring_options.end(), options.begin(), options.end());
  }
  command.add_option("--merge", flags.merge, "Measure nothing; print tables over these files of --resume")
      ->type_name("FILE...");
  command.add_option("--json", flags.json, "Write one JSON object per row; - for standard output")
      ->type_name("OUT");
  command.add_option("--per-question", flags.per_question, "Write one JSON object per row and question")
      ->type_name("OUT");
}

absl::Status CheckBenchFlags(const BenchFlags& flags) {
  const auto refuse = [](const std::vector<const CLI::Option*>& options, const char* why) {
    for (const CLI::Option* option : options) {
      if (option->count() == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(option->get_name(), " says nothing beside ", why));
    }
    return absl::OkStatus();
  };
  if (!flags.merge.empty()) return refuse(flags.measuring_options, "--merge, which measures nothing");
  if (flags.data.empty()) return absl::InvalidArgumentError("bench needs --data FILE, or --merge FILE...");
  if (flags.rows.empty()) return absl::OkStatus();
  return refuse(flags.combination_options, "--rows, which names every row");
}

absl::StatusOr<BenchOptions> MakeBenchOptions(const BenchFlags& flags) {
  BenchOptions options = flags.options;
  if (flags.rows.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(options.variants, CombinedRows(flags));
  } else {
    KVBLEND_ASSIGN_OR_RETURN(options.variants, NamedRows(flags.rows));
  }
  if (!flags.against.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const BenchVariant against, ParseRow(flags.against));
    const auto& rows = options.variants;
    if (std::find(rows.begin(), rows.end(), against) == rows.end()) options.variants.push_back(against);
  }
  KVBLEND_ASSIGN_OR_RETURN(options.measures, ParseMeasures(flags.measures));
  return options;
}

absl::StatusOr<std::optional<size_t>> FindRow(const std::vector<BenchVariant>& rows,
                                              const std::string& against) {
  if (against.empty()) return std::nullopt;
  KVBLEND_ASSIGN_OR_RETURN(const BenchVariant wanted, ParseRow(against));
  std::vector<std::string> names;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == wanted) return i;
    names.push_back(rows[i].RowName());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("against is '", against, "'; these results have ", absl::StrJoin(names, ", ")));
}

}  // namespace kvblend::server::cli
