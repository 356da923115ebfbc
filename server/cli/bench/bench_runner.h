// Runs the bench: one question after the other, every variant on the same question before the next.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/bench_tasks.h"
#include "server/cli/bench/question_result.h"
#include "server/cli/bench/question_runner.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

/// `done` of `total` steps; `what` is being worked on.
using BenchProgress = std::function<void(int done, int total, std::string_view what)>;
/// An error ends the run.
using OnFinishedQuestion = std::function<absl::Status(FinishedQuestion)>;

/// Per question: stores its chunks; lets full prefill write `kl_tokens` greedy tokens (end-of-text ignored),
/// which every variant is then teacher-forced over; scores and answers per variant; and at last times the
/// variants in turns, so that a machine that slows down hits all alike. Chunks that were not stored before
/// are removed again.
/// `on_finished` gets each question as soon as it is finished, in the order of the tasks.
absl::Status RunBench(Client& client, const std::vector<BenchTask>& tasks, const BenchOptions& options,
                      const KeptReferences& kept, const BenchProgress& progress,
                      const OnFinishedQuestion& on_finished);

}  // namespace kvblend::server::cli
