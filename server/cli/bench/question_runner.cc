#include "server/cli/bench/question_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/bench/answer_metrics.h"
#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

const absl::Time kNoEnd = absl::InfiniteFuture();
constexpr BenchVariant kFullPrefill = {.mode = BenchMode::kFull};

v1::PromptReport CountsOf(const v1::PromptReport& report) {
  v1::PromptReport counts;
  counts.set_prompt_tokens(report.prompt_tokens());
  counts.set_exact_tokens(report.exact_tokens());
  counts.set_reused_tokens(report.reused_tokens());
  counts.set_recomputed_tokens(report.recomputed_tokens());
  counts.set_computed_tokens(report.computed_tokens());
  return counts;
}

void NotePrompt(const v1::PromptReport& report, const BenchVariant& variant, QuestionResult& result) {
  result.prompt_tokens = report.prompt_tokens();
  result.exact_tokens = report.exact_tokens();
  result.reused_tokens = report.reused_tokens();
  result.recomputed_tokens = report.recomputed_tokens();
  result.computed_tokens = report.computed_tokens();
  if (variant.mode != BenchMode::kReuse && variant.mode != BenchMode::kBlend) return;
  int missing = 0;
  for (const v1::ChunkReport& chunk : report.chunks()) {
    missing += chunk.source() == v1::CHUNK_SOURCE_MISS ? 1 : 0;
  }
  result.missing_chunks = std::max(result.missing_chunks, missing);
}

}  // namespace

QuestionRunner::QuestionRunner(Client& client, const BenchQuestion& question, const BenchOptions& options,
                               const KeptReferences& kept)
    : client_(client),
      question_(question),
      options_(options),
      kept_(kept),
      prompt_(MakePrompt(question, options.max_passages)) {}

absl::Status QuestionRunner::StoreChunks() {
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
    KVBLEND_RETURN_IF_ERROR(client_.Put(request, kNoEnd, [this](const v1::PutChunkProgress& chunk) {
      if (!chunk.already_present()) new_keys_.insert(chunk.key());
    }));
  }
  return absl::OkStatus();
}

absl::Status QuestionRunner::RemoveChunks() {
  v1::DeleteChunksRequest request;
  request.set_namespace_(options_.tenant_namespace);
  request.mutable_keys()->Assign(new_keys_.begin(), new_keys_.end());
  new_keys_.clear();
  return request.keys().empty() ? absl::OkStatus() : client_.calls().Delete(request).status();
}

absl::Status QuestionRunner::MakeReference() {
  const BenchMeasures& measures = options_.measures;
  if (measures.kl) {
    KVBLEND_ASSIGN_OR_RETURN(greedy_scores_, KeptOr("greedy tokens", options_.kl_tokens, "",
                                                    [this] { return WriteAndScoreGreedyTokens(); }));
    greedy_tokens_.clear();
    for (const v1::ScoredToken& token : greedy_scores_.tokens) greedy_tokens_.push_back(token.token_id());
  }
  if (measures.nll && options_.HasFull()) {
    KVBLEND_ASSIGN_OR_RETURN(gold_scores_, KeptOr("gold answer", 0, question_.answers.front(),
                                                  [this] { return ScoreGoldAnswer(kFullPrefill); }));
  }
  if (measures.f1) {
    KVBLEND_ASSIGN_OR_RETURN(
        answer_, KeptOr("answer", options_.answer_tokens, "", [this] { return Answer(kFullPrefill); }));
  }
  return absl::OkStatus();
}

absl::Status QuestionRunner::MeasureDivergence(const BenchVariant& variant, QuestionResult& result) {
  ReferencePart own;
  if (variant.mode != BenchMode::kFull) {
    KVBLEND_ASSIGN_OR_RETURN(own, ScoreGreedyTokens(variant, greedy_tokens_));
  }
  const ReferencePart& scores = variant.mode == BenchMode::kFull ? greedy_scores_ : own;
  // References are kept by texts and the model's fingerprint, which leaves the tokenizer out.
  if (scores.prompt.prompt_tokens() != greedy_scores_.prompt.prompt_tokens()) {
    return absl::FailedPreconditionError(
        absl::StrCat("full prefill's reference is of ", greedy_scores_.prompt.prompt_tokens(),
                     " prompt tokens, ", variant.RowName(), " has ", scores.prompt.prompt_tokens(),
                     "; if it comes from a reference cache of another tokenizer, use another folder"));
  }
  NotePrompt(scores.prompt, variant, result);
  std::vector<double> divergences;
  int agreeing = 0;
  for (size_t i = 0; i < scores.tokens.size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(const double divergence, KlDivergence(greedy_scores_.tokens[i].distribution(),
                                                                   scores.tokens[i].distribution()));
    divergences.push_back(divergence);
    agreeing += scores.tokens[i].top_token_id() == greedy_tokens_[i] ? 1 : 0;
  }
  result.kl_first_token = divergences.front();
  result.kl = Mean(divergences);
  result.top1_agreement = static_cast<double>(agreeing) / static_cast<double>(divergences.size());
  return absl::OkStatus();
}

absl::Status QuestionRunner::MeasureLikelihood(const BenchVariant& variant, QuestionResult& result) {
  ReferencePart own;
  if (variant.mode != BenchMode::kFull) {
    KVBLEND_ASSIGN_OR_RETURN(own, ScoreGoldAnswer(variant));
  }
  const ReferencePart& scores = variant.mode == BenchMode::kFull ? gold_scores_ : own;
  NotePrompt(scores.prompt, variant, result);
  double sum = 0;
  for (const v1::ScoredToken& token : scores.tokens) sum -= token.logprob();
  result.answer_nll = sum / static_cast<double>(scores.tokens.size());
  return absl::OkStatus();
}

absl::Status QuestionRunner::MeasureAnswer(const BenchVariant& variant, QuestionResult& result) {
  ReferencePart own;
  if (variant.mode != BenchMode::kFull) {
    KVBLEND_ASSIGN_OR_RETURN(own, Answer(variant));
  }
  const ReferencePart& answer = variant.mode == BenchMode::kFull ? answer_ : own;
  NotePrompt(answer.prompt, variant, result);
  result.answer = FirstLine(answer.text);
  result.answer_f1 = BestAnswerF1(result.answer, question_.answers);
  result.exact_match = IsExactMatch(result.answer, question_.answers) ? 1 : 0;
  result.full_exact_match = IsExactMatch(FirstLine(answer_.text), question_.answers) ? 1 : 0;
  return absl::OkStatus();
}

absl::Status QuestionRunner::MeasureTtft(const BenchVariant& variant, QuestionResult& result) {
  const auto on_event = [&](const v1::GenerateEvent& event) {
    if (event.has_prompt()) NotePrompt(event.prompt(), variant, result);
  };
  KVBLEND_ASSIGN_OR_RETURN(const v1::GenerateFinished finished,
                           client_.Generate(MakeGenerate(variant, /*max_tokens=*/1), kNoEnd, on_event));
  result.ttft_seconds.push_back(finished.timings().time_to_first_token_seconds());
  return absl::OkStatus();
}

template <typename Request>
Request QuestionRunner::MakeRequest(const BenchVariant& variant) const {
  Request request;
  request.set_namespace_(options_.tenant_namespace);
  *request.mutable_prompt() = prompt_;
  *request.mutable_blend() = variant.blend_options();
  return request;
}

v1::GenerateRequest QuestionRunner::MakeGenerate(const BenchVariant& variant, int32_t max_tokens) const {
  auto request = MakeRequest<v1::GenerateRequest>(variant);
  request.mutable_sampling()->set_max_tokens(max_tokens);
  return request;
}

absl::StatusOr<ReferencePart> QuestionRunner::KeptOr(
    std::string_view what, int32_t tokens, std::string_view text,
    absl::FunctionRef<absl::StatusOr<ReferencePart>()> compute) {
  if (kept_.cache == nullptr) return compute();
  const OrderedJson key = {{"engine", kept_.engine},
                           {"prompt", HashOf(prompt_)},
                           {"what", what},
                           {"tokens", tokens},
                           {"text", text}};
  return kept_.cache->GetOrCompute(key, [&]() -> absl::StatusOr<ReferencePart> {
    KVBLEND_ASSIGN_OR_RETURN(ReferencePart part, compute());
    part.prompt = CountsOf(part.prompt);
    return part;
  });
}

absl::StatusOr<ReferencePart> QuestionRunner::WriteAndScoreGreedyTokens() {
  v1::GenerateRequest request = MakeGenerate(kFullPrefill, options_.kl_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  std::vector<int32_t> tokens;
  const auto on_event = [&](const v1::GenerateEvent& event) {
    const auto& ids = event.text().token_ids();
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  };
  KVBLEND_RETURN_IF_ERROR(client_.Generate(request, kNoEnd, on_event).status());
  if (tokens.empty()) return absl::InternalError("full prefill generated no tokens");
  return ScoreGreedyTokens(kFullPrefill, tokens);
}

absl::StatusOr<ReferencePart> QuestionRunner::ScoreGreedyTokens(const BenchVariant& variant,
                                                                const std::vector<int32_t>& tokens) {
  auto request = MakeRequest<v1::ScoreRequest>(variant);
  request.mutable_continuation_token_ids()->mutable_ids()->Assign(tokens.begin(), tokens.end());
  request.set_return_distributions(true);
  KVBLEND_ASSIGN_OR_RETURN(Scores scores, client_.Score(request, kNoEnd));
  if (scores.tokens.size() != tokens.size()) {
    return absl::InternalError(
        absl::StrCat("asked for the scores of ", tokens.size(), " tokens, got ", scores.tokens.size()));
  }
  return ReferencePart{.prompt = std::move(scores.prompt), .tokens = std::move(scores.tokens), .text = {}};
}

absl::StatusOr<ReferencePart> QuestionRunner::ScoreGoldAnswer(const BenchVariant& variant) {
  auto request = MakeRequest<v1::ScoreRequest>(variant);
  request.set_continuation_text(question_.answers.front());
  KVBLEND_ASSIGN_OR_RETURN(Scores scores, client_.Score(request, kNoEnd));
  if (scores.tokens.empty()) return absl::InternalError("the gold answer was scored as no tokens");
  return ReferencePart{.prompt = std::move(scores.prompt), .tokens = std::move(scores.tokens), .text = {}};
}

absl::StatusOr<ReferencePart> QuestionRunner::Answer(const BenchVariant& variant) {
  ReferencePart answer;
  const auto on_event = [&](const v1::GenerateEvent& event) {
    if (event.has_prompt()) answer.prompt = event.prompt();
    answer.text += event.text().text();
  };
  KVBLEND_RETURN_IF_ERROR(
      client_.Generate(MakeGenerate(variant, options_.answer_tokens), kNoEnd, on_event).status());
  return answer;
}

}  // namespace kvblend::server::cli
