// kvblend bench: time and quality of full, prefix-cached, reused and blended prefill on real questions.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_runner.h"
#include "server/cli/bench/bench_tasks.h"
#include "server/cli/bench/result_file.h"
#include "server/cli/command.h"
#include "server/cli/commands/bench_flags.h"
#include "server/cli/commands/bench_serve_flags.h"
#include "server/cli/files.h"

namespace kvblend::server::cli {
namespace {

constexpr char kBenchExamples[] =
    R"(Columns: recomp: stored tokens that were recomputed. TTFT: time to first token, per question the median
of --repeat runs. KL: divergence from full prefill, over its own greedy tokens, of which --kl-tokens says how many.
gold NLL: negative log-likelihood per token of the first gold answer. Below the table: 95% intervals over the
questions; exact: answers that are right word for word; lost, won: right with full prefill alone, with the row
alone; p: chance of such a split if both were equally likely. More in docs/benchmarking.md.

Examples:
  kvblend bench --model model.gguf --data tests/fixtures/musique_sample.json --json out.jsonl
  kvblend bench --server 127.0.0.1:50051 --data questions.json --n 20 --policy query,hkvd --ratio 0.05,0.15
  kvblend bench --model model.gguf --data questions.json --passages 5 --anchored --isolated --measure kl
  kvblend bench --model model.gguf --data a.json b.json --measure kl,f1 --rows reuse,query:0.05,query:0.15 \
      --against cacheblend --reference-cache references --resume results.jsonl
  kvblend bench --model model.gguf --data a.json --shard 1/2 --resume part1.jsonl
  kvblend bench --merge part1.jsonl part2.jsonl --against reuse
)";

void WarnAboutMisses(const std::vector<BenchRow>& rows, Terminal& terminal) {
  for (const BenchRow& row : rows) {
    if (row.missing_chunks == 0) continue;
    terminal.PrintWarning(absl::StrCat(row.variant.Label(), ": ", row.missing_chunks,
                                       " chunks were no longer in the store when they were needed; "
                                       "these figures are not those of full reuse. Is the store too small?"));
  }
}

/// Writes what the flags ask for, and the tables.
absl::Status Report(const BenchFlags& flags, const SavedResults& results, Terminal& terminal) {
  const BenchOptions& options = results.settings.options;
  KVBLEND_ASSIGN_OR_RETURN(const std::optional<size_t> against, FindRow(options.variants, flags.against));
  std::string question_lines;
  for (size_t i = 0; i < options.variants.size(); ++i) {
    for (const FinishedQuestion& question : results.questions) {
      question_lines += JsonLine(ToJson(options.variants[i], question, question.rows[i])) + "\n";
    }
  }
  std::string row_lines;
  std::string tables = results.settings.Title() + "\n";
  for (const auto& [data, variants] : GroupByData(options.variants, results.questions)) {
    const std::vector<BenchRow> rows = Summarize(variants, against);
    WarnAboutMisses(rows, terminal);
    for (const BenchRow& row : rows) row_lines += JsonLine(ToJson(row, data, options.repeats)) + "\n";
    absl::StrAppend(&tables, "\n", data, ", questions: ", rows.front().num_questions);
    if (options.measures.ttft) {
      absl::StrAppend(&tables, ", time measurements per question and row: ", options.repeats);
    }
    absl::StrAppend(&tables, "\n\n", FormatTable(rows), FormatEvidence(rows));
  }
  if (flags.json == "-") terminal.out << row_lines << std::flush;
  // With "--json -" standard output has JSON alone.
  std::ostream& table = flags.json == "-" ? terminal.err : terminal.out;
  table << tables << std::flush;
  // After the table, so that a full disk does not cost it; nor does one file's error cost the other file.
  absl::Status written;
  if (!flags.per_question.empty()) written.Update(WriteFile(flags.per_question, question_lines));
  if (!flags.json.empty() && flags.json != "-") written.Update(WriteFile(flags.json, row_lines));
  return written;
}

/// Rows of an engine that learns while it serves do not all measure the same correction.
void WarnAboutNewCorrection(const v1::GetInfoResponse& before, Client& client, Terminal& terminal) {
  const absl::StatusOr<v1::GetInfoResponse> after = client.calls().GetInfo({});
  if (!after.ok() || after->kv_format().correction() == before.kv_format().correction()) return;
  terminal.PrintWarning(absl::StrCat("the engine's correction changed meanwhile, from '",
                                     before.kv_format().correction(), "' to '",
                                     after->kv_format().correction(), "'; corrected rows are a mixture"));
}

/// Keeps the questions of the tasks alone: a file of results may hold more.
void KeepAsked(const std::vector<BenchTask>& tasks, std::vector<FinishedQuestion>& questions) {
  std::erase_if(questions, [&](const FinishedQuestion& question) {
    return std::none_of(tasks.begin(), tasks.end(), [&](const BenchTask& task) {
      return task.data == question.data && task.index == question.index;
    });
  });
}

absl::Status Measure(const BenchFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  KVBLEND_ASSIGN_OR_RETURN(BenchOptions options, MakeBenchOptions(flags));
  KVBLEND_ASSIGN_OR_RETURN(const Shard shard, ParseShard(flags.shard));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<BenchData> data, LoadBenchData(flags.data));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<BenchTask> tasks, SelectTasks(data, flags.first, flags.n, shard));
  for (const std::string& path : {flags.per_question, flags.json}) {
    if (!path.empty() && path != "-") KVBLEND_RETURN_IF_ERROR(CheckWritable(path));
  }
  std::optional<ReferenceCache> cache;
  if (!flags.reference_cache.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(
        cache, ReferenceCache::Open(flags.reference_cache,
                                    [&terminal](std::string_view what) { terminal.PrintWarning(what); }));
  }
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, client.GetInfo(options.tenant_namespace));

  SavedResults results{.settings = MakeRunSettings(info, options), .questions = {}};
  std::optional<ResultFile> file;
  if (!flags.resume.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(file, ResultFile::Open(flags.resume, results.settings, results.questions));
    KeepAsked(tasks, results.questions);
    KVBLEND_ASSIGN_OR_RETURN(tasks, TasksLeft(tasks, options.max_passages, results.questions));
    if (!results.questions.empty()) {
      terminal.PrintNote(
          absl::StrFormat("questions in %s already: %d", flags.resume, results.questions.size()));
    }
  }
  absl::Status status;
  {
    ProgressBar bar(terminal, "Bench");
    const KeptReferences kept{.cache = cache ? &*cache : nullptr, .engine = FullPrefillEngine(info)};
    status = RunBench(
        client, tasks, options, kept,
        [&](int done, int total, std::string_view what) { bar.Update(done, total, what); },
        [&](FinishedQuestion question) {
          if (file) KVBLEND_RETURN_IF_ERROR(file->Append(question));
          results.questions.push_back(std::move(question));
          return absl::OkStatus();
        });
  }
  if (cache) {
    terminal.PrintNote(absl::StrFormat("full prefill: %d results from %s, %d computed", cache->found(),
                                       flags.reference_cache, cache->computed()));
  }
  WarnAboutNewCorrection(info, client, terminal);
  if (status.ok() && results.questions.empty()) terminal.PrintNote("no questions in this part");
  // An interrupted run still tells what it has measured so far.
  if (!results.questions.empty()) KVBLEND_RETURN_IF_ERROR(Report(flags, results, terminal));
  return status;
}

absl::Status Run(const BenchFlags& flags, CommandContext& context) {
  KVBLEND_RETURN_IF_ERROR(CheckBenchFlags(flags));
  if (!flags.merge.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const SavedResults results, MergeResultFiles(flags.merge));
    return Report(flags, results, context.terminal);
  }
  return Measure(flags, context);
}

}  // namespace

void AddBenchCommand(CLI::App& root, CommandContext& context) {
  const auto [command, flags] = AddCommand<BenchFlags>(
      root, context, "bench",
      "Measure time to first token and quality against full prefill on real questions", kBenchExamples, Run);
  AddBenchFlags(command, flags);
  AddBenchServeCommand(command, context);
}

}  // namespace kvblend::server::cli
