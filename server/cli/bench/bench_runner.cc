#include "server/cli/bench/bench_runner.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/bench/answer_metrics.h"
#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

const absl::Time kNoDeadline = absl::InfiniteFuture();

/// Everything of one question that its variants share.
struct Reference {
  std::vector<int32_t> greedy_tokens;
  std::vector<v1::ScoredToken> scores;  // full prefill's, over greedy_tokens
};

class QuestionRunner {
 public:
  QuestionRunner(Client& client, const BenchQuestion& question, const BenchOptions& options)
      : client_(client),
        question_(question),
        options_(options),
        prompt_(MakePrompt(question, options.max_passages)) {}

  // Puts the chunks that the variants reuse; remembers which ones to remove.
  absl::Status StoreChunks() {
    std::set<v1::Anchoring> anchorings;
    for (const BenchVariant& variant : options_.variants) {
      if (variant.mode != BenchMode::kFull) anchorings.insert(variant.anchoring);
    }
    for (const v1::Anchoring anchoring : anchorings) {
      v1::PutChunksRequest request;
      request.set_namespace_(options_.tenant_namespace);
      request.set_system_text(prompt_.system_text());
      request.set_lead_in(prompt_.lead_in());
      request.set_anchoring(anchoring);
      *request.mutable_chunks() = prompt_.chunks();
      request.set_label("kvblend bench");
      KVBLEND_RETURN_IF_ERROR(client_.Put(request, kNoDeadline, [this](const v1::PutChunkProgress& chunk) {
        if (!chunk.already_present()) new_keys_.insert(chunk.key());
      }));
    }
    return absl::OkStatus();
  }

  absl::Status RemoveChunks() {
    v1::DeleteChunksRequest request;
    request.set_namespace_(options_.tenant_namespace);
    request.mutable_keys()->Assign(new_keys_.begin(), new_keys_.end());
    new_keys_.clear();
    return request.keys().empty() ? absl::OkStatus() : client_.calls().Delete(request).status();
  }

  absl::Status MakeReference() {
    const BenchVariant full{.mode = BenchMode::kFull};
    v1::GenerateRequest request = MakeGenerate(full, options_.kl_tokens);
    request.mutable_sampling()->set_ignore_eos(true);
    const auto on_event = [this](const v1::GenerateEvent& event) {
      const auto& ids = event.text().token_ids();
      reference_.greedy_tokens.insert(reference_.greedy_tokens.end(), ids.begin(), ids.end());
    };
    KVBLEND_RETURN_IF_ERROR(client_.Generate(request, kNoDeadline, on_event).status());
    if (reference_.greedy_tokens.empty()) return absl::InternalError("full prefill generated no tokens");
    KVBLEND_ASSIGN_OR_RETURN(Scores scores, ScoreReference(full));
    reference_.scores = std::move(scores.tokens);
    return absl::OkStatus();
  }

  absl::Status MeasureDivergence(const BenchVariant& variant, QuestionResult& result) {
    std::vector<v1::ScoredToken> own;
    if (variant.mode != BenchMode::kFull) {
      KVBLEND_ASSIGN_OR_RETURN(Scores scores, ScoreReference(variant));
      NotePrompt(scores.prompt, variant, result);
      own = std::move(scores.tokens);
    }
    const std::vector<v1::ScoredToken>& tokens = variant.mode == BenchMode::kFull ? reference_.scores : own;
    std::vector<double> divergences;
    int agreeing = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      KVBLEND_ASSIGN_OR_RETURN(const double divergence,
                               KlDivergence(reference_.scores[i].distribution(), tokens[i].distribution()));
      divergences.push_back(divergence);
      agreeing += tokens[i].top_token_id() == reference_.greedy_tokens[i] ? 1 : 0;
    }
    result.kl_first_token = divergences.front();
    result.kl = Mean(divergences);
    result.top1_agreement = static_cast<double>(agreeing) / static_cast<double>(tokens.size());
    return absl::OkStatus();
  }

  absl::Status MeasureLikelihood(const BenchVariant& variant, QuestionResult& result) {
    v1::ScoreRequest request = MakeRequest<v1::ScoreRequest>(variant);
    request.set_continuation_text(question_.answers.front());
    KVBLEND_ASSIGN_OR_RETURN(const Scores scores, client_.Score(request, kNoDeadline));
    NotePrompt(scores.prompt, variant, result);
    if (scores.tokens.empty()) return absl::InternalError("the gold answer was scored as no tokens");
    double sum = 0;
    for (const v1::ScoredToken& token : scores.tokens) sum -= token.logprob();
    result.answer_nll = sum / static_cast<double>(scores.tokens.size());
    return absl::OkStatus();
  }

  absl::Status MeasureAnswer(const BenchVariant& variant, QuestionResult& result) {
    std::string text;
    const auto on_event = [&](const v1::GenerateEvent& event) {
      if (event.has_prompt()) NotePrompt(event.prompt(), variant, result);
      text += event.text().text();
    };
    KVBLEND_RETURN_IF_ERROR(
        client_.Generate(MakeGenerate(variant, options_.answer_tokens), kNoDeadline, on_event).status());
    result.answer = FirstLine(text);
    result.answer_f1 = BestAnswerF1(result.answer, question_.answers);
    return absl::OkStatus();
  }

  absl::Status MeasureTtft(const BenchVariant& variant, QuestionResult& result) {
    const auto on_event = [&](const v1::GenerateEvent& event) {
      if (event.has_prompt()) NotePrompt(event.prompt(), variant, result);
    };
    KVBLEND_ASSIGN_OR_RETURN(
        const v1::GenerateFinished finished,
        client_.Generate(MakeGenerate(variant, /*max_tokens=*/1), kNoDeadline, on_event));
    result.ttft_seconds.push_back(finished.timings().time_to_first_token_seconds());
    return absl::OkStatus();
  }

 private:
  template <typename Request>
  Request MakeRequest(const BenchVariant& variant) const {
    Request request;
    request.set_namespace_(options_.tenant_namespace);
    *request.mutable_prompt() = prompt_;
    *request.mutable_blend() = variant.blend_options();
    return request;
  }

  v1::GenerateRequest MakeGenerate(const BenchVariant& variant, int32_t max_tokens) const {
    auto request = MakeRequest<v1::GenerateRequest>(variant);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    return request;
  }

  absl::StatusOr<Scores> ScoreReference(const BenchVariant& variant) const {
    v1::ScoreRequest request = MakeRequest<v1::ScoreRequest>(variant);
    request.mutable_continuation_token_ids()->mutable_ids()->Assign(reference_.greedy_tokens.begin(),
                                                                    reference_.greedy_tokens.end());
    request.set_return_distributions(true);
    KVBLEND_ASSIGN_OR_RETURN(Scores scores, client_.Score(request, kNoDeadline));
    if (scores.tokens.size() != reference_.greedy_tokens.size()) {
      return absl::InternalError(absl::StrCat("asked for the scores of ", reference_.greedy_tokens.size(),
                                              " tokens, got ", scores.tokens.size()));
    }
    return scores;
  }

  static void NotePrompt(const v1::PromptReport& report, const BenchVariant& variant,
                         QuestionResult& result) {
    result.prompt_tokens = report.prompt_tokens();
    result.exact_tokens = report.exact_tokens();
    result.reused_tokens = report.reused_tokens();
    result.recomputed_tokens = report.recomputed_tokens();
    result.computed_tokens = report.computed_tokens();
    if (variant.mode != BenchMode::kReuse && variant.mode != BenchMode::kBlend) return;
    int missing = 0;
    for (const v1::ChunkReport& chunk : report.chunks())
      missing += chunk.source() == v1::CHUNK_SOURCE_MISS ? 1 : 0;
    result.missing_chunks = std::max(result.missing_chunks, missing);
  }

  Client& client_;
  const BenchQuestion& question_;
  const BenchOptions& options_;
  const v1::Prompt prompt_;
  Reference reference_;
  std::set<std::string> new_keys_;
};

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

absl::Status RunQuestion(QuestionRunner& runner, int index, const BenchOptions& options, Steps& steps,
                         std::vector<VariantResults>& results) {
  const std::string prefix = absl::StrCat("question ", index + 1, ": ");
  const BenchMeasures& measures = options.measures;
  steps.Begin(absl::StrCat(prefix, "storing chunks"));
  KVBLEND_RETURN_IF_ERROR(runner.StoreChunks());
  if (measures.kl) {
    steps.Begin(absl::StrCat(prefix, "full prefill"));
    KVBLEND_RETURN_IF_ERROR(runner.MakeReference());
  }
  for (VariantResults& row : results) {
    QuestionResult& result = row.questions.emplace_back();
    result.question_index = index;
    steps.Begin(absl::StrCat(prefix, row.variant.Label(), ", quality"));
    if (measures.kl) KVBLEND_RETURN_IF_ERROR(runner.MeasureDivergence(row.variant, result));
    if (measures.nll) KVBLEND_RETURN_IF_ERROR(runner.MeasureLikelihood(row.variant, result));
    if (measures.f1) KVBLEND_RETURN_IF_ERROR(runner.MeasureAnswer(row.variant, result));
  }
  if (!measures.ttft) return absl::OkStatus();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    steps.Begin(absl::StrCat(prefix, "timing"));
    for (VariantResults& row : results) {
      KVBLEND_RETURN_IF_ERROR(runner.MeasureTtft(row.variant, row.questions.back()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBench(Client& client, const std::vector<BenchQuestion>& questions,
                      const BenchOptions& options, const BenchProgress& progress,
                      std::vector<VariantResults>& results) {
  results.clear();
  for (const BenchVariant& variant : options.variants) {
    results.push_back({.variant = variant, .questions = {}});
  }
  int count = static_cast<int>(questions.size());
  if (options.max_questions > 0) count = std::min(count, options.max_questions);
  const int steps_per_question = 1 + (options.measures.kl ? 1 : 0) +
                                 static_cast<int>(options.variants.size()) +
                                 (options.measures.ttft ? options.repeats : 0);
  Steps steps(progress, count * steps_per_question);
  for (int i = 0; i < count; ++i) {
    QuestionRunner runner(client, questions[i], options);
    // Also after an error or Ctrl-C the store is left as it was found, as far as it can still be reached.
    const absl::Cleanup remove_chunks = [&] { runner.RemoveChunks().IgnoreError(); };
    const absl::Status status = RunQuestion(runner, i, options, steps, results);
    if (!status.ok()) {
      for (VariantResults& row : results) {
        if (row.questions.size() > static_cast<size_t>(i)) row.questions.pop_back();
      }
      return absl::Status(status.code(), absl::StrCat("question ", i + 1, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
