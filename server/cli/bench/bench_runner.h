// Runs the bench: one question after the other, every variant on the same question before the next.
#pragma once

#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/dataset.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// One variant on one question. NaN: not measured.
struct QuestionResult {
  int question_index = 0;
  double prompt_tokens = 0;
  double exact_tokens = 0;
  double reused_tokens = 0;
  double recomputed_tokens = 0;
  double computed_tokens = 0;
  int missing_chunks = 0;                // that should have been in the store
  std::vector<double> ttft_seconds;      // one per repeat
  double kl_first_token = kNotMeasured;  // nats
  double kl = kNotMeasured;              // nats, mean over the continuation
  double top1_agreement = kNotMeasured;
  double answer_nll = kNotMeasured;  // nats per token of the first gold answer
  double answer_f1 = kNotMeasured;
  std::string answer;
};

/// A variant's results, one per question, in order.
struct VariantResults {
  BenchVariant variant;
  std::vector<QuestionResult> questions;
};

/// `done` of `total` steps; `what` is being worked on.
using BenchProgress = std::function<void(int done, int total, std::string_view what)>;

/// Per question: stores its chunks; lets full prefill write `kl_tokens` greedy tokens (end-of-text ignored),
/// which every variant is then teacher-forced over; scores and answers per variant; and at last times the
/// variants in turns, so that a machine that slows down hits all alike. Chunks that were not stored before
/// are removed again.
/// `results` gets one element per variant with the questions that were finished, also when an error ends the
/// run.
absl::Status RunBench(Client& client, const std::vector<BenchQuestion>& questions,
                      const BenchOptions& options, const BenchProgress& progress,
                      std::vector<VariantResults>& results);

}  // namespace kvblend::server::cli
