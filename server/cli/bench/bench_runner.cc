#include "server/cli/bench/bench_runner.h"

#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {
namespace {

/// Counts steps for the progress display.
class Steps {
 public:
  Steps(const BenchProgress& progress, int total) : progress_(progress), total_(total) {}
  void Begin(std::string_view what) {
    if (progress_) progress_(done_, total_, what);
    ++done_;
  }

 private:
  const BenchProgress& progress_;
  const int total_;
  int done_ = 0;
};

std::string TaskName(const BenchTask& task) {
  return absl::StrCat(task.data, task.data.empty() ? "" : ", ", "question ", task.index + 1);
}

bool NeedsReference(const BenchOptions& options) {
  return options.measures.kl || options.measures.f1 || (options.measures.nll && options.HasFull());
}

absl::Status RunQuestion(QuestionRunner& runner, const BenchTask& task, const BenchOptions& options,
                         Steps& steps, std::vector<QuestionResult>& rows) {
  const std::string prefix = absl::StrCat(TaskName(task), ": ");
  const BenchMeasures& measures = options.measures;
  steps.Begin(absl::StrCat(prefix, "storing chunks"));
  KVBLEND_RETURN_IF_ERROR(runner.StoreChunks());
  if (NeedsReference(options)) {
    steps.Begin(absl::StrCat(prefix, "full prefill"));
    KVBLEND_RETURN_IF_ERROR(runner.MakeReference());
  }
  for (const BenchVariant& variant : options.variants) {
    QuestionResult& result = rows.emplace_back();
    steps.Begin(absl::StrCat(prefix, variant.Label(), ", quality"));
    if (measures.kl) KVBLEND_RETURN_IF_ERROR(runner.MeasureDivergence(variant, result));
    if (measures.nll) KVBLEND_RETURN_IF_ERROR(runner.MeasureLikelihood(variant, result));
    if (measures.f1) KVBLEND_RETURN_IF_ERROR(runner.MeasureAnswer(variant, result));
  }
  if (!measures.ttft) return absl::OkStatus();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    steps.Begin(absl::StrCat(prefix, "timing"));
    for (size_t i = 0; i < rows.size(); ++i) {
      KVBLEND_RETURN_IF_ERROR(runner.MeasureTtft(options.variants[i], rows[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBench(Client& client, const std::vector<BenchTask>& tasks, const BenchOptions& options,
                      const KeptReferences& kept, const BenchProgress& progress,
                      const OnFinishedQuestion& on_finished) {
  const int steps_per_question = 1 + (NeedsReference(options) ? 1 : 0) +
                                 static_cast<int>(options.variants.size()) +
                                 (options.measures.ttft ? options.repeats : 0);
  Steps steps(progress, static_cast<int>(tasks.size()) * steps_per_question);
  for (const BenchTask& task : tasks) {
    FinishedQuestion finished{.data = task.data,
                              .index = task.index,
                              .hash = HashOf(task.question, options.max_passages),
                              .rows = {}};
    {
      QuestionRunner runner(client, task.question, options, kept);
      // Also after an error or Ctrl-C the store is left as it was found, as far as it can still be reached.
      const absl::Cleanup remove_chunks = [&] { runner.RemoveChunks().IgnoreError(); };
      const absl::Status status = RunQuestion(runner, task, options, steps, finished.rows);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(TaskName(task), ": ", status.message()));
      }
    }
    KVBLEND_RETURN_IF_ERROR(on_finished(std::move(finished)));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
