#include "engine/serve/calibration/correction_tuning.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/kv/tuning/attention_match.h"

namespace kvblend {
namespace {

// Weight of a question's token; one that an answer's token is chosen from weighs 1.
constexpr float kQuestionWeight = 0.3f;

}  // namespace

absl::StatusOr<CorrectionTuning> CorrectionTuning::Create(ModelRuntime& runtime,
                                                          const kv::LearnedCorrection& start,
                                                          absl::Span<const kv::PairMoments> pairs,
                                                          int32_t num_threads) {
  CorrectionTuning tuning(runtime, start, num_threads);
  for (size_t layer = 0; layer < start.layers.size(); ++layer) {
    std::optional<kv::LayerTuner>& tuner = tuning.tuners_.emplace_back();
    if (!start.layers[layer].empty()) tuner.emplace(start.layers[layer], start.rank, pairs[layer]);
  }
  const model::ModelConfig& config = runtime.config;
  for (const model::RopeConfig& rope : config.ropes) {
    KVBLEND_ASSIGN_OR_RETURN(
        tuning.rotations_.emplace_back(),
        kernels::HostRopeTable::Create(config.RopeSpecOf(rope, runtime.max_context_tokens)));
  }
  return tuning;
}

absl::Status CorrectionTuning::StepLayer(const PlacedPrompt::Layer& layer,
                                         absl::Span<const PlacedPrompt::Chunk> chunks,
                                         absl::Span<const float> weights, double rate, double& missed) {
  kv::LayerTuner& tuner = *tuners_[layer.index()];
  const kernels::AttentionSpec spec = runtime_.transformer->attention(layer.index());
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> queries, layer.LastQueries());
  // Computed anew at each step: kept in f32, they would take about as much memory as a quantized model.
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> output, layer.OutputWeights());
  kv::LayerAttention attention{.num_heads = spec.num_heads,
                               .num_kv_heads = start_.num_kv_heads,
                               .head_dim = start_.head_dim,
                               .scale = spec.scale,
                               .logit_soft_cap = spec.logit_soft_cap,
                               .sliding_window = spec.sliding_window,
                               .sinks = {},
                               .rope = rotations_[runtime_.config.layers[layer.index()].rope].get(),
                               .fresh = layer.fresh(),
                               .queries = queries,
                               .weights = weights,
                               .output = output};
  if (spec.sinks.data != nullptr) {
    attention.sinks.resize(spec.num_heads);
    KVBLEND_RETURN_IF_ERROR(
        runtime_.backend->CopyToHost(*runtime_.stream, attention.sinks.data(), spec.sinks.data,
                                     spec.num_heads * static_cast<int64_t>(sizeof(float))));
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
  }
  const auto channels = static_cast<size_t>(attention.channels());
  std::vector<float> corrected(layer.fresh().begin(), layer.fresh().end()), gradient(corrected.size());
  const auto rows_of = [&](std::vector<float>& all, const PlacedPrompt::Chunk& chunk) {
    return absl::MakeSpan(all).subspan(chunk.begin * channels, chunk.tokens.size() * channels);
  };
  for (const PlacedPrompt::Chunk& chunk : chunks) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> stored, layer.StoredOf(chunk));
    tuner.Apply(stored, chunk.tokens, rows_of(corrected, chunk));
  }
  missed += kv::MatchAttention(attention, corrected, num_threads_, absl::MakeSpan(gradient));
  for (const PlacedPrompt::Chunk& chunk : chunks) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> stored, layer.StoredOf(chunk));
    tuner.AddGradient(stored, chunk.tokens, rows_of(gradient, chunk));
  }
  tuner.Step(rate);
  return absl::OkStatus();
}

absl::StatusOr<double> CorrectionTuning::Step(const Example& example, PlacedPrompt& placed, double rate) {
  const prompt::PromptLayout& layout = example.layout;
  const absl::Span<const int32_t> read =
      example.answer.first(example.answer.size() - 1);  // the last one is never run
  const auto question = static_cast<size_t>(layout.spans.back().size());
  std::vector<float> weights(question + read.size(), 1.0f);
  std::fill_n(weights.begin(), question - 1, kQuestionWeight);
  double missed = 0;
  int32_t layers = 0;
  KVBLEND_RETURN_IF_ERROR(placed.VisitLayers(
      layout, read, [&](const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk> chunks) {
        if (!tuners_[layer.index()].has_value()) return absl::OkStatus();
        ++layers;
        return StepLayer(layer, chunks, weights, rate, missed);
      }));
  return layers == 0 ? 0 : missed / layers;
}

kv::LearnedCorrection CorrectionTuning::Mean() const {
  kv::LearnedCorrection mean = start_;
  for (size_t layer = 0; layer < tuners_.size(); ++layer) {
    if (tuners_[layer].has_value()) mean.layers[layer] = tuners_[layer]->Mean();
  }
  return mean;
}

}  // namespace kvblend
