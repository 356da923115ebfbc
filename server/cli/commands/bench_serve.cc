// kvblend bench serve: a running server under load.
#include <CLI/CLI.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/cli/bench/bench_tasks.h"
#include "server/cli/bench/run_settings.h"
#include "server/cli/command.h"
#include "server/cli/commands/bench_serve_flags.h"
#include "server/cli/files.h"
#include "server/cli/load/load_page.h"
#include "server/cli/load/load_report.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {
namespace {

constexpr char kBenchServeExamples[] =
    R"(Latencies count from the planned time of a request, whenever it was sent, and percentiles are over the requests that were
answered. goodput: answers per second within --slo-ttft and --slo-itl. "12+/20": cut off, by a search because too many were late
already, or by Ctrl-C; its figures leave out the requests that took longest.
More in docs/load.md.

Examples:
  kvblend bench serve --data questions.json --rate 0.5,1,2,4 --duration 60 --html load.html
  kvblend bench serve --data questions.json --rows full,query:0.15,query:0.05 --zipf 1 --search 3
  kvblend bench serve --data questions.json --clients 1,4,16 --output-tokens 16-64 --turns 3
  kvblend bench serve --data questions.json --rate 20 --duration 600 --rows query:0.15 --check-answers
)";

/// A line of JSON for every request; a file that cannot be written any more shows at the end.
class RequestLines {
 public:
  absl::Status Open(const std::string& path) {
    if (path.empty()) return absl::OkStatus();
    path_ = path;
    KVBLEND_ASSIGN_OR_RETURN(file_, OpenToWrite(path));
    return absl::OkStatus();
  }
  bool wanted() const { return !path_.empty(); }
  void Add(const OrderedJson& line) { written_.Update(WriteAll(file_, path_, JsonLine(line) + "\n")); }
  const absl::Status& written() const { return written_; }

 private:
  std::string path_;
  server::Descriptor file_;
  absl::Status written_;
};

absl::Status WriteReports(const BenchServeFlags& flags, const LoadOptions& options, const LoadRun& run,
                          const std::string& title, Terminal& terminal) {
  std::string lines;
  for (const LoadPoint& point : run.points) lines += JsonLine(ToJson(point, options.modes)) + "\n";
  for (const HighestRate& highest : run.highest) lines += JsonLine(ToJson(highest, options.modes)) + "\n";
  if (flags.json == "-") terminal.out << lines << std::flush;
  std::ostream& table = flags.json == "-" ? terminal.err : terminal.out;
  table << title << "\n\n" << FormatLoadTable(run, options.modes) << std::flush;
  // After the table, so that a full disk does not cost it; nor does one file's error cost the other file.
  absl::Status written;
  if (!flags.html.empty()) {
    written.Update(WriteFile(flags.html, LoadPage(run, options.modes, title, DescribeLoad(flags, options))));
  }
  if (!flags.json.empty() && flags.json != "-") written.Update(WriteFile(flags.json, lines));
  return written;
}

void WarnAboutLoad(const LoadRun& run, const LoadOptions& options, Terminal& terminal) {
  constexpr double kLate = 0.02;  // seconds
  for (const LoadPoint& point : run.points) {
    const std::string name = absl::StrCat(options.modes[point.mode].RowName(), ", ", LoadName(point));
    if (point.summary.late_p99 > kLate) {
      terminal.PrintWarning(absl::StrCat(name, ": requests were sent up to ",
                                         HumanSeconds(point.summary.late_p99),
                                         " late (p99); is there a processor left for this program?"));
    }
    // Of the mode prefix an exact prefix is looked for, which ends behind the first chunk.
    const BenchMode mode = options.modes[point.mode].mode;
    const bool wants_all = mode != BenchMode::kFull && mode != BenchMode::kPrefix;
    if (options.warm && wants_all && point.summary.hit_rate < 1) {
      terminal.PrintWarning(absl::StrCat(name,
                                         ": not all chunks were in the store when they were needed. Is the "
                                         "store too small?"));
    }
    if (point.summary.other_anchor_rate > 0) {
      terminal.PrintWarning(absl::StrFormat(
          "%s: %.0f%% of the chunks were computed behind another system text or lead-in than the "
          "request's, which costs quality",
          name, std::ceil(100 * point.summary.other_anchor_rate)));
    }
    if (const auto refused = point.summary.errors.find("RESOURCE_EXHAUSTED");
        point.kind == LoadKind::kClients && refused != point.summary.errors.end()) {
      terminal.PrintWarning(absl::StrCat(
          name, ": ", refused->second,
          " requests were refused, since the server's queue does not hold those of so many clients. Refused clients "
          "pause before they ask again, so that fewer were served at a time"));
    }
  }
}

/// An error where answers differ, or requests failed for another reason than load.
absl::Status CheckOutcome(const LoadRun& run) {
  int64_t mismatches = 0, requests = 0, failures = 0;
  absl::Status first_failure;
  for (const LoadPoint& point : run.points) {
    mismatches += point.summary.mismatches;
    requests += point.summary.requests;
    failures += point.summary.failures;
    first_failure.Update(point.summary.first_failure);
  }
  if (mismatches > 0) {
    return absl::DataLossError(
        absl::StrCat(mismatches, " answers under load differ from those without load"));
  }
  if (failures == 0) return absl::OkStatus();
  return absl::Status(first_failure.code(),
                      absl::StrCat(failures, " of ", requests,
                                   " requests failed, the first one with: ", first_failure.message()));
}

absl::Status RunBenchServe(const BenchServeFlags& flags, CommandContext& context) {
  Terminal& terminal = context.terminal;
  KVBLEND_ASSIGN_OR_RETURN(LoadOptions options, MakeLoadOptions(flags));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<BenchData> data, LoadBenchData(flags.data));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<BenchTask> tasks, SelectTasks(data, flags.first, flags.n, {}));
  std::vector<BenchQuestion> questions;
  questions.reserve(tasks.size());
  for (const BenchTask& task : tasks) questions.push_back(task.question);
  KVBLEND_ASSIGN_OR_RETURN(const ConversationOptions asked, MakeConversationOptions(flags));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<Conversation> conversations,
                           MakeConversations(questions, asked));
  for (const std::string& path : {flags.html, flags.json}) {
    if (!path.empty() && path != "-") KVBLEND_RETURN_IF_ERROR(CheckWritable(path));
  }
  if (options.check_answers) options.unloaded_requests = static_cast<int>(conversations.size());

  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(flags.connection));
  KVBLEND_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, client.GetInfo(options.tenant_namespace));
  RequestLines request_lines;
  KVBLEND_RETURN_IF_ERROR(request_lines.Open(flags.per_request));
  LoadRun run;
  absl::Status status;
  {
    ProgressBar bar(terminal, "Load");
    LoadRunner::OnRecord on_record;
    if (request_lines.wanted()) {
      on_record = [&](const LoadPoint& point, const LoadRecord& record) {
        request_lines.Add(ToJson(point, record, options.modes));
      };
    }
    LoadRunner runner(
        client, schedule::Clock::System(), context.cancellation, conversations, options,
        [&](int64_t done, int64_t total, std::string_view what) { bar.Update(done, total, what); },
        std::move(on_record));
    status = runner.Run(run);
  }
  if (status.ok()) status = request_lines.written();
  WarnAboutLoad(run, options, terminal);
  // An interrupted run still tells what it has measured so far.
  if (!run.points.empty()) {
    KVBLEND_RETURN_IF_ERROR(
        WriteReports(flags, options, run, MakeRunSettings(info, BenchOptions()).Title(), terminal));
  }
  KVBLEND_RETURN_IF_ERROR(status);
  return CheckOutcome(run);
}

}  // namespace

void AddBenchServeCommand(CLI::App& bench, CommandContext& context) {
  const auto [command, flags] = AddCommand<BenchServeFlags>(
      bench, context, "serve", "Put a running server under load: latencies, rates, goodput",
      kBenchServeExamples, RunBenchServe);
  AddBenchServeFlags(command, flags);
}

}  // namespace kvblend::server::cli
