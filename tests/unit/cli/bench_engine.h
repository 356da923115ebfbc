// An engine whose distributions and times are known in closed form, and the bench over it.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "server/cli/bench/bench_runner.h"
#include "server/cli/bench/bench_summary.h"
#include "tests/unit/cli/fake_calls.h"

namespace kvblend::server::cli {

inline constexpr int kTokens = 16;

inline std::vector<float> Distribution(double p0) {
  return {static_cast<float>(std::log(p0)), static_cast<float>(std::log(1 - p0))};
}

/// Full prefill: (0.6, 0.4) everywhere, so token 0 is its greedy one. Whatever reuses chunks gives (0.3, 0.7)
/// for the first token and (0.6, 0.4) after it. Full prefill takes 8 s, the exact prefix 4 s, reuse 1 s,
/// blending 2 s.
class KnownEngine : public FakeCalls {
 public:
  KnownEngine() {
    on_generate = [this](const v1::GenerateRequest& request, const Send<v1::GenerateEvent>& send) {
      return KnownGenerate(request, send);
    };
    on_score = [](const v1::ScoreRequest& request, const Send<v1::ScoreEvent>& send) {
      return KnownScore(request, send);
    };
  }

  int failing_generate = -1;  // index of the Generate call that fails

 private:
  static double Seconds(const v1::BlendOptions& blend) {
    if (blend.reuse() == v1::REUSE_NOTHING) return 8;
    if (blend.reuse() == v1::REUSE_PREFIX) return 4;
    return blend.policy() == v1::POLICY_NONE ? 1 : 2;
  }

  absl::Status KnownGenerate(const v1::GenerateRequest& request, const Send<v1::GenerateEvent>& send) {
    if (static_cast<int>(generated.size()) - 1 == failing_generate) return absl::UnavailableError("gone");
    v1::GenerateEvent event = PromptEvent(request);
    const v1::BlendOptions& blend = request.blend();
    event.mutable_prompt()->set_recomputed_tokens(
        blend.policy() == v1::POLICY_QUERY && blend.reuse() == v1::REUSE_CHUNKS ? 15 : 0);
    send(event);
    // In two deltas, to see that they are put together.
    const int count = request.sampling().ignore_eos() ? request.sampling().max_tokens() : 2;
    send(TextEvent("\nThe gold", {0}));
    send(TextEvent(" answer\nmore", std::vector<int32_t>(count - 1, 0)));
    send(FinishedEvent(v1::FINISH_REASON_MAX_TOKENS, Seconds(blend)));
    return absl::OkStatus();
  }

  static absl::Status KnownScore(const v1::ScoreRequest& request, const Send<v1::ScoreEvent>& send) {
    v1::ScoreEvent event;
    *event.mutable_prompt() = Report(request.prompt(), request.blend());
    send(event);
    const bool exact = request.blend().reuse() != v1::REUSE_CHUNKS;
    const int count = request.has_continuation_text() ? 2 : request.continuation_token_ids().ids_size();
    for (int i = 0; i < count; ++i) {
      const double p0 = exact || i > 0 ? 0.6 : 0.3;
      v1::ScoredToken token;
      token.set_logprob(std::log(p0));
      token.set_top_token_id(p0 > 0.5 ? 0 : 1);
      if (request.return_distributions()) {
        for (const float value : Distribution(p0)) token.add_distribution(value);
      }
      *event.mutable_token() = token;
      send(event);
    }
    return absl::OkStatus();
  }
};

inline std::vector<BenchQuestion> Questions(int count) {
  std::vector<BenchQuestion> questions;
  for (int i = 0; i < count; ++i) {
    const std::string number(static_cast<size_t>(i) + 1, 'x');  // other lengths, other keys in the fake store
    questions.push_back({.question = "Q" + number,
                         .answers = {"gold answer", "other"},
                         .passages = {{"A", number}, {"B", number + number + "yy"}}});
  }
  return questions;
}

inline BenchOptions Options(std::vector<BenchMode> modes) {
  BenchOptions options;
  options.variants = *MakeVariants(modes, {v1::POLICY_QUERY}, {0.15}, {v1::ANCHORING_ANCHORED});
  options.repeats = 2;
  options.tenant_namespace = "bench";
  return options;
}

inline std::vector<BenchTask> Tasks(const std::vector<BenchQuestion>& questions) {
  std::vector<BenchTask> tasks;
  for (const BenchQuestion& question : questions) {
    tasks.push_back({.data = "", .index = static_cast<int>(tasks.size()), .question = question});
  }
  return tasks;
}

/// What was finished, also before an error.
struct BenchRun {
  absl::Status status;
  std::vector<FinishedQuestion> finished;
};
inline BenchRun RunTasks(KnownEngine& engine, const std::vector<BenchQuestion>& questions,
                         const BenchOptions& options, const BenchProgress& progress = nullptr,
                         const KeptReferences& kept = {}) {
  Cancellation cancellation;
  Client client(engine.Lend(), cancellation);
  BenchRun run;
  run.status = RunBench(client, Tasks(questions), options, kept, progress, [&](FinishedQuestion question) {
    run.finished.push_back(std::move(question));
    return absl::OkStatus();
  });
  return run;
}

inline absl::StatusOr<std::vector<VariantResults>> Bench(KnownEngine& engine,
                                                         const std::vector<BenchQuestion>& questions,
                                                         const BenchOptions& options,
                                                         const BenchProgress& progress = nullptr) {
  const BenchRun run = RunTasks(engine, questions, options, progress);
  if (!run.status.ok()) return run.status;
  return GroupByData(options.variants, run.finished).front().rows;
}

inline const std::vector<BenchMode> kAllModes = {BenchMode::kFull, BenchMode::kPrefix, BenchMode::kReuse,
                                                 BenchMode::kBlend};

}  // namespace kvblend::server::cli
