#include "engine/blend/blended_prefill.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "engine/blend/prefill_route.h"

namespace kvblend::blend {
namespace {

using kernels::DataType;
using kernels::MatrixView;

std::vector<kernels::ColumnRange> ColumnsOf(absl::Span<const CandidateSpan> spans) {
  std::vector<kernels::ColumnRange> columns;
  columns.reserve(spans.size());
  for (const CandidateSpan& span : spans) columns.push_back({span.begin, span.end});
  return columns;
}

}  // namespace

std::vector<int32_t> MergePositions(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  std::vector<int32_t> merged(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), merged.begin());
  return merged;
}

std::vector<int32_t> VotingLayers(Windows windows, int32_t num_layers, int32_t prompt_tokens) {
  std::vector<int32_t> voters;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (windows[layer] == 0 || windows[layer] >= prompt_tokens) voters.push_back(layer);
  }
  if (voters.empty()) {
    voters.resize(num_layers);
    std::iota(voters.begin(), voters.end(), 0);
  }
  const auto first_late =
      std::lower_bound(voters.begin(), voters.end(), static_cast<int32_t>(windows.size() / 8));
  if (first_late != voters.end()) voters.erase(voters.begin(), first_late);
  return voters;
}

BlendedPrefill::BlendedPrefill(const PassContext& context, const SelectionPolicy& policy)
    : context_(context), policy_(policy), times_(context.backend().CreateStreamClock(context.stream)) {}

BlendedPrefill::~BlendedPrefill() { context_.backend().Synchronize(context_.stream).IgnoreError(); }

absl::StatusOr<std::unique_ptr<BlendedPrefill>> BlendedPrefill::Create(const PassContext& context,
                                                                       const SelectionPolicy& policy) {
  std::unique_ptr<BlendedPrefill> prefill(new BlendedPrefill(context, policy));
  KVBLEND_ASSIGN_OR_RETURN(
      KvLoader loader,
      KvLoader::Create(prefill->context_, {&prefill->times_, prefill->place_, prefill->stall_}));
  prefill->loader_ = std::make_unique<KvLoader>(std::move(loader));
  KVBLEND_RETURN_IF_ERROR(prefill->Begin());
  return prefill;
}

absl::Status BlendedPrefill::Begin() {
  const Charged charged(&times_, other_);
  const ReusePlan& plan = context_.plan;
  result_.policy = policy_.policy();
  const int32_t budget = policy_.Budget(plan.candidates);
  const Requirement requirement = policy_.requirement();
  switch (ChooseRoute(static_cast<int64_t>(plan.computed.size()) + plan.shared_computed,
                      plan.candidates.num_tokens, requirement, budget)) {
    case PrefillRoute::kQueryPass:
      return BeginQueryPass(requirement.layers);
    case PrefillRoute::kDeviation:
      return BeginDeviation(requirement);
    case PrefillRoute::kAll:
      result_.policy = Policy::kAll;
      result_.recomputed = plan.candidates.Positions();
      return Blend();
    case PrefillRoute::kOnePass:
      break;
  }
  if (budget == plan.candidates.num_tokens) {
    result_.recomputed = plan.candidates.Positions();
  } else {
    KVBLEND_ASSIGN_OR_RETURN(result_.recomputed, policy_.Select(plan.candidates, NothingMeasured));
  }
  return Blend();
}

absl::StatusOr<bool> BlendedPrefill::Step(KeepGoing keep_going) {
  if (stage_ == Stage::kLogits) {
    KVBLEND_RETURN_IF_ERROR(Finish());
    KVBLEND_RETURN_IF_ERROR(TakeTimes());
    return true;
  }
  const Charged charged(&times_, other_);
  KVBLEND_ASSIGN_OR_RETURN(const bool done, pass_->Step(keep_going));
  if (!done) return false;
  if (context_.trace != nullptr) {
    context_.trace->Add(
        {.name = stage_ == Stage::kMeasure ? "query pass" : "pass",
         .begin = pass_begin_,
         .end = context_.trace->Now(),
         .arguments = {RequestTrace::Argument{"recomputed", static_cast<int64_t>(result_.recomputed.size())},
                       {"computed", static_cast<int64_t>(context_.plan.computed.size())}}});
  }
  passes_.insert(passes_.end(), pass_->measurements().begin(), pass_->measurements().end());
  if (stage_ == Stage::kMeasure) {
    KVBLEND_RETURN_IF_ERROR(EndQueryPass());
  } else {
    stage_ = Stage::kLogits;
  }
  return false;
}

absl::Status BlendedPrefill::Blend() {
  pass_begin_ = TraceNow(context_.trace);
  // Layers that had no vote arrive while the first ones are recomputed.
  KVBLEND_ASSIGN_OR_RETURN(
      pass_, RowPass::Create(context_, *loader_, MergePositions(context_.plan.computed, result_.recomputed)));
  stage_ = Stage::kBlend;
  return absl::OkStatus();
}

// The rows are all computed tokens, not only the question's, because the question may attend to missing
// chunks and those have no other KV; only the question's rows vote.
absl::Status BlendedPrefill::BeginQueryPass(int32_t num_layers) {
  pass_begin_ = TraceNow(context_.trace);
  const ReusePlan& plan = context_.plan;
  RowPass::Measure measure{
      .layers = VotingLayers(WindowsOf(context_.transformer.config()), num_layers, plan.prompt_tokens),
      .mass = {},
      .lengths = {}};
  KVBLEND_ASSIGN_OR_RETURN(question_, context_.sequence.PlanRange(plan.spans.back().begin, plan.prompt_tokens,
                                                                  plan.prompt_tokens));
  const auto of_layers = [&](model::ScratchMatrix& matrix) {
    return matrix.Resize(context_.backend(), static_cast<int64_t>(measure.layers.size()), plan.prompt_tokens,
                         DataType::kF32);
  };
  KVBLEND_ASSIGN_OR_RETURN(mass_, of_layers(context_.scratch.mass));
  KVBLEND_ASSIGN_OR_RETURN(lengths_, of_layers(context_.scratch.lengths));
  measure.question = question_.get();
  measure.mass = mass_;
  measure.lengths = lengths_;
  KVBLEND_ASSIGN_OR_RETURN(pass_, RowPass::Create(context_, *loader_, plan.computed, std::move(measure)));
  stage_ = Stage::kMeasure;
  return absl::OkStatus();
}

absl::Status BlendedPrefill::EndQueryPass() {
  {
    const TracedUnit traced(context_.trace, "select");
    const Charged charged(&times_, select_);
    KVBLEND_RETURN_IF_ERROR(ScoreAttention());
    KVBLEND_ASSIGN_OR_RETURN(result_.recomputed, Choose());
  }
  return Blend();
}

absl::Status BlendedPrefill::ScoreAttention() {
  const ReusePlan& plan = context_.plan;
  KVBLEND_ASSIGN_OR_RETURN(scores_, context_.scratch.scores.Resize(
                                        context_.backend(), 1, plan.candidates.num_tokens, DataType::kF32));
  return context_.backend().MassScores(context_.stream, mass_, lengths_, ColumnsOf(plan.chunk_spans),
                                       ColumnsOf(plan.candidates.spans), scores_);
}

absl::Status BlendedPrefill::BeginDeviation(const Requirement& requirement) {
  pass_begin_ = TraceNow(context_.trace);
  const ReusePlan& plan = context_.plan;
  loader_->AskForLayer(requirement.layers);  // stored KV to compare fresh KV with
  RowPass::Selection selection{
      .layer = requirement.layers,
      .choose = [this, requirement](const RowPass& pass,
                                    KeepGoing keep_going) -> absl::StatusOr<std::vector<int32_t>> {
        const Charged charged(&times_, select_);
        KVBLEND_RETURN_IF_ERROR(ScoreDeviation(requirement, pass, keep_going));
        KVBLEND_ASSIGN_OR_RETURN(result_.recomputed, Choose());
        return MergePositions(context_.plan.computed, result_.recomputed);
      }};
  KVBLEND_ASSIGN_OR_RETURN(
      pass_, RowPass::Create(context_, *loader_, MergePositions(plan.computed, plan.candidates.Positions()),
                             std::nullopt, std::move(selection)));
  stage_ = Stage::kBlend;
  return absl::OkStatus();
}

absl::Status BlendedPrefill::ScoreDeviation(const Requirement& requirement, const RowPass& pass,
                                            KeepGoing keep_going) {
  const ReusePlan& plan = context_.plan;
  kernels::Backend& backend = context_.backend();
  KVBLEND_ASSIGN_OR_RETURN(
      scores_, context_.scratch.scores.Resize(backend, 1, plan.candidates.num_tokens, DataType::kF32));
  const bool by_key = requirement.source == DeviationSource::kKey;
  const MatrixView fresh =
      by_key ? context_.transformer.Keys(context_.state()) : context_.transformer.Values(context_.state());
  const absl::Span<const int32_t> active = pass.active();
  int64_t done = 0;
  for (const PlannedSpan& span : plan.spans) {
    if (!span.entry.has_value() || span.source == ChunkSource::kExact) continue;
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored,
                             loader_->Acquire(span, requirement.layers, keep_going));
    const int64_t first_row = std::lower_bound(active.begin(), active.end(), span.begin) - active.begin();
    const kernels::KvSectionView& section = by_key ? stored.k : stored.v;
    KVBLEND_RETURN_IF_ERROR(backend.KvDeviation(context_.stream, fresh.Rows(first_row, span.num_tokens()),
                                                section, scores_.Columns(done, span.num_tokens())));
    done += span.num_tokens();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> BlendedPrefill::Choose() {
  kernels::Backend& backend = context_.backend();
  if (context_.keep_scores) {
    result_.scores.resize(scores_.cols);
    KVBLEND_RETURN_IF_ERROR(backend.CopyToHost(context_.stream, result_.scores.data(), scores_.data,
                                               result_.scores.size() * sizeof(float)));
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(context_.stream));
  }
  return policy_.Select(context_.plan.candidates, [&](int32_t count) -> absl::StatusOr<std::vector<int32_t>> {
    static_assert(sizeof(int32_t) == sizeof(float));
    KVBLEND_ASSIGN_OR_RETURN(const MatrixView memory,
                             context_.scratch.chosen.Resize(backend, 1, count, DataType::kF32));
    const kernels::IndicesView indices{static_cast<int32_t*>(memory.data), count};
    KVBLEND_RETURN_IF_ERROR(backend.SelectTopK(context_.stream, scores_, indices));
    std::vector<int32_t> chosen(count);
    KVBLEND_RETURN_IF_ERROR(
        backend.CopyToHost(context_.stream, chosen.data(), indices.data, count * sizeof(int32_t)));
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(context_.stream));
    return chosen;
  });
}

absl::Status BlendedPrefill::Finish() {
  const TracedUnit traced(context_.trace, "logits");
  kernels::Backend& backend = context_.backend();
  {
    // The charge ends before the host waits, so that the clock has passed all of it after that.
    const Charged charged(&times_, head_);
    model::PassState& state = context_.state();
    // The last row is the last prompt token: the question is always computed and stands at the end.
    const int32_t vocab_size = context_.transformer.config().vocab_size;
    KVBLEND_ASSIGN_OR_RETURN(const MatrixView logits,
                             context_.scratch.logits.Resize(backend, 1, vocab_size, DataType::kF32));
    const int32_t last_row = static_cast<int32_t>(state.hidden.rows) - 1;
    KVBLEND_RETURN_IF_ERROR(context_.transformer.Logits(context_.stream, {last_row}, state, logits));
    result_.logits.resize(vocab_size);
    KVBLEND_RETURN_IF_ERROR(
        backend.CopyToHost(context_.stream, result_.logits.data(), logits.data, vocab_size * sizeof(float)));
    if (context_.capture != nullptr) {
      KVBLEND_RETURN_IF_ERROR(context_.capture->Download(backend, context_.stream));
    }
  }
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(context_.stream));
  result_.skipped_kv_bytes = loader_->skipped_bytes();
  return absl::OkStatus();
}

absl::Status BlendedPrefill::TakeTimes() {
  KVBLEND_RETURN_IF_ERROR(times_.Settle());
  PrefillMeasurements& measurements = result_.measurements;
  measurements.head_seconds = times_.Seconds(head_);
  measurements.placed_token_layers = static_cast<double>(loader_->token_layers());
  measurements.place_seconds = times_.Seconds(place_);
  result_.stall_seconds = times_.Seconds(stall_);
  result_.load_seconds = measurements.place_seconds + result_.stall_seconds;
  result_.select_seconds = times_.Seconds(select_);
  for (const RowPass::Charges& charges : passes_) {
    PassMeasurement& pass = measurements.passes.emplace_back(charges.measurement);
    pass.seconds = times_.Seconds(charges.account);
    if (pass.kind == PassMeasurement::Kind::kQuery) result_.select_seconds += pass.seconds;
  }
  result_.compute_seconds = times_.Total() - result_.load_seconds - result_.select_seconds;
  return absl::OkStatus();
}

}  // namespace kvblend::blend
