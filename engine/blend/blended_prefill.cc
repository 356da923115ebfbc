#include "engine/blend/blended_prefill.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/blend/prefill_route.h"

namespace kvblend::blend {
namespace {

using kernels::ConstMatrixView;
using kernels::DataType;
using kernels::MatrixView;

class Stopwatch {
 public:
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  const absl::Time start_ = absl::Now();
};

PassSize SizeOf(absl::Span<const int32_t> positions) {
  PassSize size{.rows = static_cast<double>(positions.size())};
  for (const int32_t position : positions) size.visible_keys += position + 1;
  return size;
}

std::vector<kernels::ColumnRange> ColumnsOf(absl::Span<const CandidateSpan> spans) {
  std::vector<kernels::ColumnRange> columns;
  columns.reserve(spans.size());
  for (const CandidateSpan& span : spans) columns.push_back({span.begin, span.end});
  return columns;
}

/// Measures one pass, loading left out.
class PassTimer {
 public:
  explicit PassTimer(const KvLoader& loader) : loader_(loader), loaded_before_(loader.seconds()) {}

  PassMeasurement Take(PassMeasurement::Kind kind, absl::Span<const int32_t> active, int32_t layers) const {
    return {.kind = kind,
            .size = SizeOf(active),
            .layers = layers,
            .seconds = stopwatch_.Seconds() - (loader_.seconds() - loaded_before_)};
  }

 private:
  const KvLoader& loader_;
  const double loaded_before_;
  const Stopwatch stopwatch_;
};

}  // namespace

struct BlendedPrefill::Pass {
  const prompt::PromptLayout& layout;
  const ReusePlan& plan;
  const SelectionPolicy& policy;
  const PagedSequence& sequence;
  FreshRowCapture* capture;
  KeepGoing keep_going;
  std::vector<PassMeasurement>& measurements;
};

std::vector<int32_t> MergePositions(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  std::vector<int32_t> merged(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), merged.begin());
  return merged;
}

absl::StatusOr<PrefillResult> BlendedPrefill::Run(const prompt::PromptLayout& layout, const ReusePlan& plan,
                                                  const SelectionPolicy& policy,
                                                  const PagedSequence& sequence,
                                                  const kv::LoadedCorrection* correction,
                                                  FreshRowCapture* capture, KeepGoing keep_going) {
  const Stopwatch total;
  correction_.correction = correction;
  PrefillResult result;
  const Pass pass{layout, plan, policy, sequence, capture, keep_going, result.measurements.passes};
  KVBLEND_ASSIGN_OR_RETURN(KvLoader loader,
                           KvLoader::Create(plan, sequence, transformer_, pipeline_depth_, correction_));
  // Whatever ends this early: the device may still be reading what the plan's entries hold.
  const absl::Cleanup settle = [this] { transformer_.backend().Synchronize(stream_).IgnoreError(); };
  result.policy = policy.policy();
  const int32_t budget = policy.Budget(plan.candidates);
  const Requirement requirement = policy.requirement();
  const PrefillRoute route = ChooseRoute(static_cast<int64_t>(plan.computed.size()),
                                         plan.candidates.num_tokens, requirement, budget);
  if (route == PrefillRoute::kAll) {
    result.policy = Policy::kAll;
    result.recomputed = plan.candidates.Positions();
    KVBLEND_RETURN_IF_ERROR(
        RunRows(pass, MergePositions(plan.computed, result.recomputed), loader, /*first_load=*/0));
  } else if (route == PrefillRoute::kQueryPass) {
    const Stopwatch query_pass;
    KVBLEND_RETURN_IF_ERROR(MeasureQuestionAttention(pass, requirement.layers, loader));
    KVBLEND_ASSIGN_OR_RETURN(result.recomputed, Choose(pass));
    result.select_seconds = query_pass.Seconds() - loader.seconds();
    // Layers that had no vote arrive while the first ones are recomputed.
    KVBLEND_RETURN_IF_ERROR(
        RunRows(pass, MergePositions(plan.computed, result.recomputed), loader, requirement.layers));
  } else if (route == PrefillRoute::kDeviation) {
    KVBLEND_ASSIGN_OR_RETURN(result.recomputed,
                             RunSelectingByDeviation(pass, requirement, loader, result.select_seconds));
  } else {
    if (budget == plan.candidates.num_tokens) {
      result.recomputed = plan.candidates.Positions();
    } else {
      KVBLEND_ASSIGN_OR_RETURN(result.recomputed, policy.Select(plan.candidates, NothingMeasured));
    }
    KVBLEND_RETURN_IF_ERROR(
        RunRows(pass, MergePositions(plan.computed, result.recomputed), loader, /*first_load=*/0));
  }

  const Stopwatch head;
  // The last row is the last prompt token: the question is always computed and stands at the end.
  const int32_t vocab_size = transformer_.config().vocab_size;
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView logits,
                           logits_.Resize(transformer_.backend(), 1, vocab_size, DataType::kF32));
  const int32_t last_row = static_cast<int32_t>(state_.hidden.rows) - 1;
  KVBLEND_RETURN_IF_ERROR(transformer_.Logits(stream_, {last_row}, state_, logits));
  result.logits.resize(vocab_size);
  KVBLEND_RETURN_IF_ERROR(transformer_.backend().CopyToHost(stream_, result.logits.data(), logits.data,
                                                            vocab_size * sizeof(float)));
  if (capture != nullptr) KVBLEND_RETURN_IF_ERROR(capture->Download(transformer_.backend(), stream_));
  KVBLEND_RETURN_IF_ERROR(transformer_.backend().Synchronize(stream_));
  result.measurements.head_seconds = head.Seconds();
  result.measurements.placed_token_layers = static_cast<double>(loader.token_layers());
  result.measurements.place_seconds = loader.seconds() - loader.stall_seconds();
  result.load_seconds = loader.seconds();
  result.stall_seconds = loader.stall_seconds();
  result.compute_seconds = total.Seconds() - result.load_seconds - result.select_seconds;
  return result;
}

absl::Status BlendedPrefill::RunLayers(const Pass& pass, absl::Span<const int32_t> active,
                                       const kernels::BatchPlan& rows, LayerRange layers, KvLoader& loader,
                                       int32_t first_load, KvLoader::Which which) {
  const PassTimer timer(loader);
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    KVBLEND_RETURN_IF_ERROR(pass.keep_going());
    const kernels::KvPagesView pages = pass.sequence.Layer(layer);
    if (layer >= first_load) {
      KVBLEND_RETURN_IF_ERROR(loader.Load(stream_, layer, which, pass.keep_going));
    }
    KVBLEND_RETURN_IF_ERROR(transformer_.ProjectQkv(stream_, layer, state_));
    KVBLEND_RETURN_IF_ERROR(KeepFreshRows(pass, layer, active));
    KVBLEND_RETURN_IF_ERROR(transformer_.WriteKv(stream_, layer, rows, state_, pages));
    if (layer + 1 == transformer_.config().num_layers) {
      KVBLEND_RETURN_IF_ERROR(FinishLastRow(pass, pages));
      continue;
    }
    KVBLEND_RETURN_IF_ERROR(transformer_.RotateQueries(stream_, layer, rows, state_));
    if (pass.capture != nullptr) {
      KVBLEND_RETURN_IF_ERROR(pass.capture->KeepMass(transformer_, stream_, layer, pass.sequence, state_));
    }
    KVBLEND_RETURN_IF_ERROR(transformer_.AttendAndMlp(stream_, layer, rows, pages, state_));
  }
  pass.measurements.push_back(timer.Take(PassMeasurement::Kind::kForward, active, layers.end - layers.begin));
  return absl::OkStatus();
}

absl::Status BlendedPrefill::KeepFreshRows(const Pass& pass, int32_t layer,
                                           absl::Span<const int32_t> active) {
  if (pass.capture == nullptr) return absl::OkStatus();
  return pass.capture->Keep(transformer_.backend(), stream_, layer, active,
                            transformer_.KeysAndValues(state_));
}

absl::Status BlendedPrefill::FinishLastRow(const Pass& pass, kernels::KvPagesView pages) {
  const int32_t end = pass.plan.prompt_tokens;
  KVBLEND_ASSIGN_OR_RETURN(const auto last, pass.sequence.PlanRange(end - 1, end, end));
  KVBLEND_RETURN_IF_ERROR(
      transformer_.KeepRows(stream_, {static_cast<int32_t>(state_.hidden.rows) - 1}, state_));
  const int32_t layer = transformer_.config().num_layers - 1;
  KVBLEND_RETURN_IF_ERROR(transformer_.RotateQueries(stream_, layer, *last, state_));
  return transformer_.AttendAndMlp(stream_, layer, *last, pages, state_);
}

absl::Status BlendedPrefill::RunRows(const Pass& pass, absl::Span<const int32_t> active, KvLoader& loader,
                                     int32_t first_load) {
  KVBLEND_ASSIGN_OR_RETURN(const auto rows, pass.sequence.PlanRows(active, pass.plan.prompt_tokens));
  std::vector<int32_t> token_ids;
  token_ids.reserve(active.size());
  for (int32_t position : active) token_ids.push_back(pass.layout.token_ids[position]);
  KVBLEND_RETURN_IF_ERROR(transformer_.Begin(stream_, token_ids, state_));
  return RunLayers(pass, active, *rows, {0, transformer_.config().num_layers}, loader, first_load,
                   KvLoader::Which::kAll);
}

// The rows are all computed tokens, not only the question's, because the question may attend to missing
// chunks and those have no other KV; only the question's rows vote.
absl::Status BlendedPrefill::MeasureQuestionAttention(const Pass& pass, int32_t voting_layers,
                                                      KvLoader& loader) {
  const ReusePlan& plan = pass.plan;
  const int32_t question_begin = plan.spans.back().begin;
  const int64_t question_rows = plan.prompt_tokens - question_begin;
  KVBLEND_ASSIGN_OR_RETURN(const auto rows, pass.sequence.PlanRows(plan.computed, plan.prompt_tokens));
  KVBLEND_ASSIGN_OR_RETURN(const auto question,
                           pass.sequence.PlanRange(question_begin, plan.prompt_tokens, plan.prompt_tokens));
  KVBLEND_ASSIGN_OR_RETURN(const MatrixView mass, layer_mass_.Resize(transformer_.backend(), voting_layers,
                                                                     plan.prompt_tokens, DataType::kF32));
  std::vector<int32_t> token_ids;
  token_ids.reserve(plan.computed.size());
  for (int32_t position : plan.computed) token_ids.push_back(pass.layout.token_ids[position]);
  KVBLEND_RETURN_IF_ERROR(transformer_.Begin(stream_, token_ids, state_));

  const PassTimer timer(loader);
  for (int32_t layer = 0; layer < voting_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(pass.keep_going());
    const kernels::KvPagesView pages = pass.sequence.Layer(layer);
    KVBLEND_RETURN_IF_ERROR(loader.Load(stream_, layer, KvLoader::Which::kAll, pass.keep_going));
    KVBLEND_RETURN_IF_ERROR(transformer_.ProjectQkv(stream_, layer, state_));
    KVBLEND_RETURN_IF_ERROR(transformer_.WriteKv(stream_, layer, *rows, state_, pages));
    KVBLEND_RETURN_IF_ERROR(transformer_.RotateQueries(stream_, layer, *rows, state_));
    const MatrixView queries = transformer_.Queries(state_), layer_mass = mass.Rows(layer, 1);
    const bool goes_on = layer + 1 < voting_layers;
    if (goes_on && question_rows == queries.rows) {
      KVBLEND_RETURN_IF_ERROR(transformer_.AttendAndMlp(stream_, layer, *rows, pages, state_, layer_mass));
      continue;
    }
    KVBLEND_RETURN_IF_ERROR(transformer_.backend().AttentionMass(
        stream_, *question, queries.Rows(queries.rows - question_rows, question_rows),
        transformer_.attention(layer), pages, layer_mass));
    if (goes_on) KVBLEND_RETURN_IF_ERROR(transformer_.AttendAndMlp(stream_, layer, *rows, pages, state_));
  }
  pass.measurements.push_back(timer.Take(PassMeasurement::Kind::kQuery, plan.computed, voting_layers));
  // Per layer the mass is divided by its sum over all placed chunk tokens, so that layers which mostly look
  // elsewhere get the same say; a token's score is its maximum over layers.
  KVBLEND_ASSIGN_OR_RETURN(
      scores_, scores_storage_.Resize(transformer_.backend(), 1, plan.candidates.num_tokens, DataType::kF32));
  return transformer_.backend().MassScores(stream_, mass, ColumnsOf(plan.chunk_spans),
                                           ColumnsOf(plan.candidates.spans), scores_);
}

absl::StatusOr<std::vector<int32_t>> BlendedPrefill::Choose(const Pass& pass) {
  kernels::Backend& backend = transformer_.backend();
  return pass.policy.Select(pass.plan.candidates, [&](int32_t count) -> absl::StatusOr<std::vector<int32_t>> {
    static_assert(sizeof(int32_t) == sizeof(float));
    KVBLEND_ASSIGN_OR_RETURN(const MatrixView memory, chosen_.Resize(backend, 1, count, DataType::kF32));
    const kernels::IndicesView indices{static_cast<int32_t*>(memory.data), count};
    KVBLEND_RETURN_IF_ERROR(backend.SelectTopK(stream_, scores_, indices));
    std::vector<int32_t> chosen(count);
    KVBLEND_RETURN_IF_ERROR(
        backend.CopyToHost(stream_, chosen.data(), indices.data, count * sizeof(int32_t)));
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream_));
    return chosen;
  });
}

absl::StatusOr<std::vector<int32_t>> BlendedPrefill::RunSelectingByDeviation(const Pass& pass,
                                                                             const Requirement& requirement,
                                                                             KvLoader& loader,
                                                                             double& select_seconds) {
  const ReusePlan& plan = pass.plan;
  const int32_t check_layer = requirement.layers;
  const int32_t num_layers = transformer_.config().num_layers;
  const std::vector<int32_t> inexact = MergePositions(plan.computed, plan.candidates.Positions());
  KVBLEND_ASSIGN_OR_RETURN(const auto all_rows, pass.sequence.PlanRows(inexact, plan.prompt_tokens));
  std::vector<int32_t> token_ids;
  token_ids.reserve(inexact.size());
  for (int32_t position : inexact) token_ids.push_back(pass.layout.token_ids[position]);
  KVBLEND_RETURN_IF_ERROR(transformer_.Begin(stream_, token_ids, state_));
  KVBLEND_RETURN_IF_ERROR(RunLayers(pass, inexact, *all_rows, {0, check_layer}, loader, /*first_load=*/0,
                                    KvLoader::Which::kExactOnly));

  // At the check layer every inexact token has fresh KV, and it is kept for all; only the chosen rows go on.
  KVBLEND_RETURN_IF_ERROR(pass.keep_going());
  const kernels::KvPagesView pages = pass.sequence.Layer(check_layer);
  KVBLEND_RETURN_IF_ERROR(loader.Load(stream_, check_layer, KvLoader::Which::kExactOnly, pass.keep_going));
  KVBLEND_RETURN_IF_ERROR(transformer_.ProjectQkv(stream_, check_layer, state_));
  KVBLEND_RETURN_IF_ERROR(KeepFreshRows(pass, check_layer, inexact));
  KVBLEND_RETURN_IF_ERROR(transformer_.WriteKv(stream_, check_layer, *all_rows, state_, pages));
  const Stopwatch selection;
  KVBLEND_RETURN_IF_ERROR(MeasureDeviation(pass, inexact, requirement, loader));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> chosen, Choose(pass));
  select_seconds = selection.Seconds();

  const std::vector<int32_t> active = MergePositions(plan.computed, chosen);
  std::vector<int32_t> kept_rows;  // rows of `inexact` that stay
  kept_rows.reserve(active.size());
  for (size_t row = 0, next = 0; row < inexact.size() && next < active.size(); ++row) {
    if (inexact[row] != active[next]) continue;
    kept_rows.push_back(static_cast<int32_t>(row));
    ++next;
  }
  KVBLEND_RETURN_IF_ERROR(transformer_.KeepRows(stream_, kept_rows, state_));
  KVBLEND_ASSIGN_OR_RETURN(const auto active_rows, pass.sequence.PlanRows(active, plan.prompt_tokens));
  KVBLEND_RETURN_IF_ERROR(transformer_.RotateQueries(stream_, check_layer, *active_rows, state_));
  KVBLEND_RETURN_IF_ERROR(transformer_.AttendAndMlp(stream_, check_layer, *active_rows, pages, state_));
  KVBLEND_RETURN_IF_ERROR(RunLayers(pass, active, *active_rows, {check_layer + 1, num_layers}, loader,
                                    /*first_load=*/0, KvLoader::Which::kAll));
  return chosen;
}

absl::Status BlendedPrefill::MeasureDeviation(const Pass& pass, absl::Span<const int32_t> active,
                                              const Requirement& requirement, KvLoader& loader) {
  const ReusePlan& plan = pass.plan;
  KVBLEND_ASSIGN_OR_RETURN(
      scores_, scores_storage_.Resize(transformer_.backend(), 1, plan.candidates.num_tokens, DataType::kF32));
  const bool by_key = requirement.source == DeviationSource::kKey;
  const MatrixView fresh = by_key ? transformer_.Keys(state_) : transformer_.Values(state_);
  int64_t done = 0;
  for (const PlannedSpan& span : plan.spans) {
    if (!span.entry.has_value() || span.source == ChunkSource::kExact) continue;
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored,
                             loader.Acquire(stream_, span, requirement.layers, pass.keep_going));
    const int64_t first_row = std::lower_bound(active.begin(), active.end(), span.begin) - active.begin();
    const kernels::KvSectionView& section = by_key ? stored.k : stored.v;
    KVBLEND_RETURN_IF_ERROR(
        transformer_.backend().KvDeviation(stream_, fresh.Rows(first_row, span.num_tokens()), section,
                                           scores_.Columns(done, span.num_tokens())));
    done += span.num_tokens();
  }
  return absl::OkStatus();
}

}  // namespace kvblend::blend
