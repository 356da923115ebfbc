// kvblend bench: time and quality of full, prefix-cached, reused and blended prefill on real questions.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_runner.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/command.h"
#include "server/cli/files.h"
#include "server/cli/flags.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

constexpr char kBenchExamples[] =
    R"(Columns: recomp: stored tokens that were recomputed. TTFT: time to first token, per question the median
of --repeat runs. KL: divergence from full prefill, over full prefill's own 16 greedy tokens. gold NLL: negative
log-likelihood per token of the first gold answer. More in docs/benchmarking.md.

Examples:
  kvblend bench --model model.gguf --data tests/fixtures/musique_sample.json --json out.jsonl
  kvblend bench --server 127.0.0.1:50051 --data questions.json --n 20 --policy query,hkvd --ratio 0.05,0.15
  kvblend bench --model model.gguf --data questions.json --passages 5 --anchored --isolated --measure kl
)";

struct BenchFlags {
  Connection connection;
  std::string data;
  std::string json;
  std::string per_question;
  std::vector<std::string> modes = {"full", "prefix", "reuse", "blend"};
  std::vector<std::string> policies = {"query"};
  std::vector<std::string> ratios = {"0.15"};
  std::vector<int32_t> query_layers = {0};
  std::vector<std::string> measures = {"ttft", "kl", "nll", "f1"};
  bool anchored = false;
  bool isolated = false;
  std::vector<std::string> corrections = {"on"};
  BenchOptions options;
};

absl::StatusOr<BenchMeasures> ParseMeasures(const std::vector<std::string>& names) {
  BenchMeasures measures{.ttft = false, .kl = false, .nll = false, .f1 = false};
  for (const std::string& name : names) {
    bool* measure = name == "ttft"  ? &measures.ttft
                    : name == "kl"  ? &measures.kl
                    : name == "nll" ? &measures.nll
                    : name == "f1"  ? &measures.f1
                                    : nullptr;
    if (measure == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown measure '", name, "'; allowed: ttft, kl, nll, f1"));
    }
    *measure = true;
  }
  return measures;
}

absl::StatusOr<BenchOptions> MakeOptions(const BenchFlags& flags) {
  BenchOptions options = flags.options;
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
  KVBLEND_ASSIGN_OR_RETURN(
      options.variants, MakeVariants(modes, policies, ratios, anchorings, flags.query_layers, corrections));
  KVBLEND_ASSIGN_OR_RETURN(options.measures, ParseMeasures(flags.measures));
  return options;
}

void WarnAboutMisses(const std::vector<BenchRow>& rows, Terminal& terminal) {
  for (const BenchRow& row : rows) {
    if (row.missing_chunks == 0) continue;
    terminal.PrintWarning(absl::StrCat(row.variant.Label(), ": ", row.missing_chunks,
                                       " chunks were no longer in the store when they were needed; "
                                       "these figures are not those of full reuse. Is the store too small?"));
  }
}

absl::Status WriteResults(const BenchFlags& flags, const std::vector<VariantResults>& results,
                          const std::vector<BenchRow>& rows, Terminal& terminal) {
  if (!flags.per_question.empty()) {
    std::string lines;
    for (const auto& [variant, questions] : results) {
      for (const QuestionResult& question : questions) lines += JsonLine(ToJson(variant, question)) + "\n";
    }
    KVBLEND_RETURN_IF_ERROR(WriteFile(flags.per_question, lines));
  }
  if (flags.json.empty()) return absl::OkStatus();
  std::string lines;
  for (const BenchRow& row : rows) lines += JsonLine(ToJson(row, flags.options.repeats)) + "\n";
  if (flags.json != "-") return WriteFile(flags.json, lines);
  terminal.out << lines << std::flush;
  return absl::OkStatus();
}

absl::Status Run(const BenchFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  KVBLEND_ASSIGN_OR_RETURN(const BenchOptions options, MakeOptions(flags));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<BenchQuestion> questions, LoadQuestions(flags.data));
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, client.calls().GetInfo({}));

  std::vector<VariantResults> results;
  absl::Status status;
  {
    ProgressBar bar(terminal, "Bench");
    status = RunBench(
        client, questions, options,
        [&](int done, int total, std::string_view what) { bar.Update(done, total, what); }, results);
  }
  // An interrupted run still tells what it has measured so far.
  if (results.front().questions.empty()) return status;
  const std::vector<BenchRow> rows = Summarize(results);
  WarnAboutMisses(rows, terminal);
  KVBLEND_RETURN_IF_ERROR(WriteResults(flags, results, rows, terminal));
  // With --json - standard output belongs to the machine.
  std::ostream& table = flags.json == "-" ? terminal.err : terminal.out;
  table << absl::StreamFormat("%s on %s\n", info.model().name(), info.backend());
  table << "questions: " << rows.front().num_questions;
  if (options.measures.ttft) table << ", time measurements per question and row: " << options.repeats;
  table << "\n\n" << FormatTable(rows) << std::flush;
  return status;
}

}  // namespace

void AddBenchCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<BenchFlags>(
      root, context, "bench",
      "Measure time to first token and quality against full prefill on real questions", kBenchExamples, Run);
  flags.options.tenant_namespace = "kvblend-bench";
  AddConnectionFlags(command, InProcess::kAllowed, flags.connection);
  command.add_option("--data", flags.data, "JSON list of {question, answers[], ctxs: [{title, text}]}")
      ->required()
      ->type_name("FILE");
  command.add_option("--n", flags.options.max_questions, "Questions, from the first; default: all")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command
      .add_option("--passages", flags.options.max_passages,
                  "Passages per question, from the first; default: all")
      ->check(CLI::PositiveNumber)
      ->type_name("K");
  command.add_option("--modes", flags.modes, "Any of full, prefix, reuse, blend")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("MODE,...");
  command.add_option("--policy", flags.policies, "Policies for mode blend: a row for each")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("NAME,...");
  command.add_option("--ratio", flags.ratios, "Ratios for mode blend, numbers or auto: a row for each")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("R,...");
  command
      .add_option("--query-layers", flags.query_layers,
                  "Policy query: layers that vote, 0: all; a row for each")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->type_name("N,...");
  command
      .add_option("--corrected", flags.corrections,
                  "on, off or both: the learned correction of stored KV; one row for each")
      ->delimiter(',')
      ->type_name("LIST")
      ->capture_default_str();
  command.add_flag("--anchored", flags.anchored, "Chunks computed behind system text and lead-in (default)");
  command.add_flag("--isolated", flags.isolated,
                   "Chunks computed by themselves; with --anchored, rows for both");
  command.add_option("--measure", flags.measures, "Any of ttft, kl, nll, f1; the rest is null")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("WHAT,...");
  command.add_option("--repeat", flags.options.repeats, "Time measurements per question and row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->type_name("N");
  command
      .add_option("--namespace", flags.options.tenant_namespace, "Where the bench keeps its chunks meanwhile")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--json", flags.json, "Write one JSON object per row; - for standard output")
      ->type_name("OUT");
  command.add_option("--per-question", flags.per_question, "Write one JSON object per row and question")
      ->type_name("OUT");
}

}  // namespace kvblend::server::cli
