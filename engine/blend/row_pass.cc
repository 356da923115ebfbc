#include "engine/blend/row_pass.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace kvblend::blend {
namespace {

// What deviates is much alike in neighbouring tokens, and of V to a small part in all tokens of a chunk: they
// all lack the same text before them (docs/algorithm.md, "Deviations are passed on").
constexpr kernels::DeviationSpread kKeySpread{.reach = 8, .anywhere = 0, .reserve = 2};
constexpr kernels::DeviationSpread kValueSpread{.reach = 8, .anywhere = 0.05f, .reserve = 2};

/// Learning wants the KV of all rows in all layers, too.
std::vector<FirstNeeded> FirstNeededOf(const PassContext& context) {
  std::vector<int32_t> windows = WindowsOf(context.transformer.config());
  const bool is_captured = context.capture != nullptr && !context.capture->empty();
  if (context.whole_kv || is_captured) std::fill(windows.begin(), windows.end(), 0);
  return FirstNeededPositions(windows, context.plan.prompt_tokens);
}

}  // namespace

RowPass::RowPass(const PassContext& context, KvLoader& loader, std::optional<Measure> measure,
                 std::optional<Selection> selection)
    : context_(context),
      loader_(loader),
      measure_(std::move(measure)),
      selection_(std::move(selection)),
      first_needed_(measure_.has_value() ? std::vector<FirstNeeded>() : FirstNeededOf(context)),
      end_layer_(measure_.has_value() ? measure_->layers.back() + 1
                                      : context.transformer.config().num_layers) {}

absl::StatusOr<std::unique_ptr<RowPass>> RowPass::Create(const PassContext& context, KvLoader& loader,
                                                         std::vector<int32_t> active,
                                                         std::optional<Measure> measure,
                                                         std::optional<Selection> selection) {
  std::unique_ptr<RowPass> pass(new RowPass(context, loader, std::move(measure), std::move(selection)));
  if (pass->DropsRows()) {
    std::erase_if(active, [&](int32_t position) { return position < pass->first_needed_[0].kv; });
  }
  pass->active_ = std::move(active);
  pass->measured_ = SizeOf(pass->active_);
  pass->BeginMeasurement();
  loader.AskFrom(0, pass->which(), pass->readers());
  KVBLEND_RETURN_IF_ERROR(pass->PlanAllRows());
  KVBLEND_RETURN_IF_ERROR(context.Begin(pass->active_));
  return pass;
}

bool RowPass::DropsRows() const { return !first_needed_.empty() && (!selection_.has_value() || selected_); }

KvLoader::Which RowPass::which() const {
  return selection_.has_value() && !selected_ ? KvLoader::Which::kExactOnly : KvLoader::Which::kAll;
}

Readers RowPass::readers() const {
  return {active_, DropsRows() ? absl::MakeConstSpan(first_needed_) : absl::Span<const FirstNeeded>()};
}

absl::StatusOr<bool> RowPass::Step(KeepGoing keep_going) {
  const Charged charged(loader_.times(), account_);
  KVBLEND_RETURN_IF_ERROR(RunUnit(keep_going));
  if (layer_ < end_layer_) return false;
  EndMeasurement(selection_.has_value() ? end_layer_ - selection_->layer - 1 : end_layer_);
  return true;
}

absl::Status RowPass::RunUnit(KeepGoing keep_going) {
  const int32_t tiles = context_.transformer.NumTiles(context_.state().hidden.rows);
  switch (phase_) {
    case Phase::kProject:
      if (unit_ == 0) {
        KVBLEND_ASSIGN_OR_RETURN(const bool loaded, LoadLayer(keep_going));
        if (is_waiting_ = !loaded; is_waiting_) return absl::OkStatus();
      }
      if (unit_ < tiles) {
        {
          const TracedUnit traced(context_.trace, "project", layer_);
          KVBLEND_RETURN_IF_ERROR(
              context_.transformer.ProjectQkvTile(context_.stream, layer_, unit_, context_.state()));
        }
        if (++unit_ < tiles) return absl::OkStatus();
      }
      if (selection_.has_value() && layer_ == selection_->layer) {
        // The stored KV to compare fresh KV with may still be on its way.
        KVBLEND_RETURN_IF_ERROR(keep_going());
        KVBLEND_ASSIGN_OR_RETURN(const bool arrived, loader_.AwaitLayer(layer_));
        if (is_waiting_ = !arrived; is_waiting_) return absl::OkStatus();
      }
      return EndProjection(keep_going);
    case Phase::kAttend: {
      const TracedUnit traced(context_.trace, "attend", layer_);
      return AttendNext();
    }
    case Phase::kMlp: {
      const TracedUnit traced(context_.trace, "mlp", layer_);
      KVBLEND_RETURN_IF_ERROR(
          context_.transformer.OutputAndMlpTile(context_.stream, layer_, unit_, context_.state()));
    }
      if (++unit_ == tiles) NextLayer();
      return absl::OkStatus();
  }
  return absl::InternalError("a pass is in no phase");
}

absl::Status RowPass::BeginLayer() {
  if (selection_.has_value() && layer_ == selection_->layer) EndMeasurement(layer_);
  // The layer of the selection itself is not measured: some of its rows go only half-way through it.
  if (selection_.has_value() && layer_ == selection_->layer + 1) BeginMeasurement();
  return DropsRows() ? KeepFrom(first_needed_[layer_].kv) : absl::OkStatus();
}

absl::StatusOr<bool> RowPass::LoadLayer(KeepGoing keep_going) {
  KVBLEND_RETURN_IF_ERROR(keep_going());
  if (!std::exchange(has_begun_, true)) {
    layer_begin_ = TraceNow(context_.trace);
    KVBLEND_RETURN_IF_ERROR(BeginLayer());
  }
  KVBLEND_ASSIGN_OR_RETURN(const bool arrived, loader_.Await(layer_, which(), readers()));
  if (!arrived) return false;
  KVBLEND_RETURN_IF_ERROR(loader_.Load(layer_, which(), readers(), keep_going));
  return true;
}

absl::Status RowPass::EndProjection(KeepGoing keep_going) {
  const model::Transformer& transformer = context_.transformer;
  model::PassState& state = context_.state();
  if (context_.capture != nullptr && !measure_.has_value()) {
    KVBLEND_RETURN_IF_ERROR(context_.capture->Keep(context_.backend(), context_.stream, layer_, active_,
                                                   transformer.KeysAndValues(state)));
  }
  KVBLEND_RETURN_IF_ERROR(SpreadDeviation());
  KVBLEND_RETURN_IF_ERROR(
      transformer.WriteKv(context_.stream, layer_, *rows_, state, context_.sequence.Layer(layer_)));
  if (selection_.has_value() && layer_ == selection_->layer) KVBLEND_RETURN_IF_ERROR(Select(keep_going));
  if (DropsRows()) KVBLEND_RETURN_IF_ERROR(KeepFrom(first_needed_[layer_].row));
  KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(context_.stream, layer_, *rows_, state));
  const bool is_last = layer_ + 1 == transformer.config().num_layers;
  if (context_.capture != nullptr && !measure_.has_value() && !is_last) {
    KVBLEND_RETURN_IF_ERROR(
        context_.capture->KeepMass(transformer, context_.stream, layer_, context_.sequence, state));
  }
  phase_ = Phase::kAttend;
  unit_ = 0;
  has_attended_ = false;
  return measure_.has_value() ? MeasureAttention() : absl::OkStatus();
}

absl::Status RowPass::SpreadDeviation() {
  // In layer 0 KV is the same whatever stands before a token.
  if (!context_.spread_deviation || measure_.has_value() || layer_ == 0) return absl::OkStatus();
  const std::vector<kernels::ColumnRange> spans = loader_.AnchoredSpans(layer_);
  if (spans.empty()) return absl::OkStatus();
  const TracedUnit traced(context_.trace, "spread deviation", layer_);
  const model::Transformer& transformer = context_.transformer;
  return context_.backend().SpreadDeviation(context_.stream, *rows_, transformer.rope(layer_), spans,
                                            kKeySpread, kValueSpread, transformer.Keys(context_.state()),
                                            transformer.Values(context_.state()),
                                            context_.sequence.Layer(layer_));
}

absl::Status RowPass::Select(KeepGoing keep_going) {
  const TracedUnit traced(context_.trace, "select", layer_);
  KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> positions, selection_->choose(*this, keep_going));
  selected_ = true;
  measured_ = SizeOf(positions);
  return KeepRows(std::move(positions));
}

absl::Status RowPass::MeasureAttention() {
  const auto vote = std::find(measure_->layers.begin(), measure_->layers.end(), layer_);
  const bool goes_on = layer_ + 1 < end_layer_;
  if (vote == measure_->layers.end()) return absl::OkStatus();
  const int64_t row = vote - measure_->layers.begin();
  const kernels::MatrixView mass = measure_->mass.Rows(row, 1), lengths = measure_->lengths.Rows(row, 1);
  const kernels::KvPagesView pages = context_.sequence.Layer(layer_);
  const int64_t rows = context_.state().hidden.rows, asking = measure_->question->num_rows();
  if (goes_on && asking == rows) {  // attend and measure at once
    has_attended_ = true;
    const TracedUnit traced(context_.trace, "attend", layer_);
    KVBLEND_RETURN_IF_ERROR(context_.transformer.Attend(context_.stream, layer_, *rows_, /*first_row=*/0,
                                                        pages, context_.state(), mass));
  } else {
    const TracedUnit traced(context_.trace, "measure attention", layer_);
    KVBLEND_RETURN_IF_ERROR(context_.backend().AttentionMass(
        context_.stream, *measure_->question,
        context_.transformer.Queries(context_.state()).Rows(rows - asking, asking),
        context_.transformer.attention(layer_), pages, mass));
  }
  KVBLEND_RETURN_IF_ERROR(
      context_.backend().ValueLengths(context_.stream, *measure_->question, pages, lengths));
  if (!goes_on) {  // the last layer's output is not needed
    TraceLayer();
    ++layer_;
  }
  return absl::OkStatus();
}

int32_t RowPass::NumAttentionParts() const {
  const int64_t rows = static_cast<int64_t>(active_.size()), unit = context_.backend().row_units().attention;
  return static_cast<int32_t>(std::max<int64_t>(1, (rows + unit - 1) / unit));
}

absl::Status RowPass::AttendNext() {
  const auto num_rows = static_cast<int64_t>(active_.size());
  const int32_t parts = NumAttentionParts();
  if (!has_attended_) {
    const int64_t begin = num_rows * unit_ / parts, end = num_rows * (unit_ + 1) / parts;
    if (parts > 1 && static_cast<int32_t>(parts_.size()) == unit_) {
      KVBLEND_ASSIGN_OR_RETURN(
          parts_.emplace_back(),
          context_.sequence.PlanRows(absl::MakeConstSpan(active_).subspan(begin, end - begin),
                                     context_.plan.prompt_tokens));
    }
    KVBLEND_RETURN_IF_ERROR(context_.transformer.Attend(context_.stream, layer_,
                                                        parts == 1 ? *rows_ : *parts_[unit_], begin,
                                                        context_.sequence.Layer(layer_), context_.state()));
    if (++unit_ < parts) return absl::OkStatus();
  }
  phase_ = Phase::kMlp;
  unit_ = 0;
  return absl::OkStatus();
}

void RowPass::TraceLayer() {
  if (context_.trace == nullptr) return;
  context_.trace->Add({.name = "layer",
                       .begin = layer_begin_,
                       .end = context_.trace->Now(),
                       .layer = layer_,
                       .arguments = {RequestTrace::Argument{"rows", static_cast<int64_t>(active_.size())}}});
}

void RowPass::NextLayer() {
  TraceLayer();
  ++layer_;
  phase_ = Phase::kProject;
  unit_ = 0;
  has_begun_ = false;
}

absl::Status RowPass::KeepFrom(int32_t position) {
  const auto first = std::lower_bound(active_.begin(), active_.end(), position);
  if (first == active_.begin()) return absl::OkStatus();
  return KeepRows({first, active_.end()});
}

absl::Status RowPass::KeepRows(std::vector<int32_t> positions) {
  std::vector<int32_t> rows;
  rows.reserve(positions.size());
  for (size_t row = 0; row < active_.size() && rows.size() < positions.size(); ++row) {
    if (active_[row] == positions[rows.size()]) rows.push_back(static_cast<int32_t>(row));
  }
  KVBLEND_RETURN_IF_ERROR(context_.transformer.KeepRows(context_.stream, rows, context_.state()));
  active_ = std::move(positions);
  return PlanAllRows();
}

absl::Status RowPass::PlanAllRows() {
  parts_.clear();
  KVBLEND_ASSIGN_OR_RETURN(rows_, context_.sequence.PlanRows(active_, context_.plan.prompt_tokens));
  return absl::OkStatus();
}

void RowPass::BeginMeasurement() {
  WorkTimes* const times = loader_.times();
  if (times == nullptr) return;
  const bool running = account_ != WorkTimes::kNobody;
  account_ = times->Open();
  if (running) times->Charge(account_);
}

void RowPass::EndMeasurement(int32_t layers) {
  if (layers > 0) {
    measurements_.push_back(
        {{.kind = measure_.has_value() ? PassMeasurement::Kind::kQuery : PassMeasurement::Kind::kForward,
          .size = measured_,
          .layers = layers},
         account_});
  }
  BeginMeasurement();
}

}  // namespace kvblend::blend
