#include "engine/api/calibration.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numbers>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/option_table.h"
#include "engine/api/prompt_too_long.h"
#include "engine/kv/correction_file.h"
#include "engine/kv/correction_fit.h"
#include "engine/kv/moments_checkpoint.h"
#include "engine/kv/pair_moments.h"
#include "engine/kv/tuning/tuning_checkpoint.h"
#include "engine/prompt/corpus_prompts.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/calibration/calibration_files.h"
#include "engine/serve/calibration/correction_tuning.h"
#include "engine/serve/calibration/judged_answers.h"
#include "engine/serve/calibration/placed_prompt.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

// Squared deviation weighs all directions alike, answers do not: a K corrected too far turns attention away
// from what it should see, most of all where little stands before a chunk. So answers choose among these.
constexpr double kKeyStrengths[] = {1, 0.85, 0.7, 0.55};
// Each thread holds a gradient of all K and V of a layer.
constexpr int32_t kMaxTuningThreads = 8;

absl::Status Check(const CalibrationOptions& options) {
  if (options.rank < 0 || options.rank > kernels::kMaxKvCorrectionRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, "; allowed: 0 to ", kernels::kMaxKvCorrectionRank));
  }
  if (!(options.ridge > 0 && options.ridge <= 100)) {
    return absl::InvalidArgumentError(absl::StrCat("ridge is ", options.ridge, "; allowed: above 0, to 100"));
  }
  if (options.attention_passes < -1 || options.attention_passes > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention-passes is ", options.attention_passes, "; allowed: -1 to 1000"));
  }
  if (!(options.held_out > 0 && options.held_out < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("held-out is ", options.held_out, "; allowed: above 0 and below 1"));
  }
  if (options.origin.size() > kv::CorrectionOrigin::kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the origin has ", options.origin.size(),
                                                   " bytes; allowed: at most ",
                                                   kv::CorrectionOrigin::kMaxBytes));
  }
  return absl::OkStatus();
}

std::string NameOf(const CalibrationOptions& options, size_t prompt) {
  return prompt < options.names.size() ? options.names[prompt] : absl::StrCat("prompt ", prompt);
}

absl::Status CheckPrompts(const CalibrationOptions& options) {
  const std::vector<Prompt>& prompts = options.prompts;
  if (prompts.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", prompts.size(), " prompts; allowed: at least 2, one is kept back"));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::string>& chunks = prompts[i].chunks;
    if (chunks.size() < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(options, i), " has ", chunks.size(), " chunks; allowed: at least 2"));
    }
    const auto blank = std::find_if(chunks.begin(), chunks.end(), [](const std::string& chunk) {
      return absl::StripAsciiWhitespace(chunk).empty();
    });
    if (blank == chunks.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(NameOf(options, i), ": chunk ", blank - chunks.begin(),
                                                   " is empty; allowed: some text"));
  }
  return absl::OkStatus();
}

/// Fewer pairs than a map has channels say less than it takes, and an answer or two that are kept back do not
/// tell chance from gain.
absl::Status CheckPairs(absl::Span<const prompt::PromptLayout> fitted, const store::KvFormat& format,
                        Anchoring anchoring) {
  int64_t pairs = 0;
  for (const prompt::PromptLayout& layout : fitted) {
    for (const prompt::Span& span : layout.spans) {
      const bool corrected = span.chunk_index > 0 || anchoring == Anchoring::kIsolated;
      if (span.kind == prompt::SpanKind::kChunk && corrected) pairs += span.size();
    }
  }
  const int64_t least = int64_t{2} * format.num_kv_heads * format.head_dim;
  if (pairs >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the prompts to fit have ", pairs,
                                                 " tokens behind other chunks; allowed: at least ", least,
                                                 ", one for each channel of this model's K and V"));
}

/// The correction that a new one would replace, if it is of the same use.
std::optional<kv::LearnedCorrection> CorrectionThere(const std::string& path, const ModelRuntime& runtime,
                                                     Anchoring anchoring) {
  absl::StatusOr<kv::CorrectionFile> file = kv::ReadCorrectionFile(path);
  if (!file.ok() || file->correction.anchoring != anchoring) return std::nullopt;
  if (!CheckCorrectionFits(path, file->correction, runtime.key_space).ok()) return std::nullopt;
  return std::move(file->correction);
}

using Moments = std::vector<kv::PairMoments>;  // one per layer

/// Adds pairs of stored KV and full prefill's, for every chunk but the first. They are weighted by the
/// attention that the question pays to their tokens.
absl::Status AddPairs(const prompt::PromptLayout& layout, PlacedPrompt& placed, Moments& moments) {
  const auto anchor = static_cast<int64_t>(layout.anchor_ids.size());
  return placed.VisitLayers(
      layout, /*answer=*/{},
      [&](const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk> chunks) -> absl::Status {
        KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> mass, layer.QuestionMass());
        const std::vector<float> weights = kv::WeightsOfMass(absl::MakeConstSpan(mass).subspan(anchor));
        for (const PlacedPrompt::Chunk& chunk : chunks) {
          KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> stored, layer.StoredOf(chunk));
          moments[layer.index()].Add(
              {.stored = stored,
               .fresh = layer.FreshOf(chunk),
               .tokens = chunk.tokens,
               .weights = absl::MakeConstSpan(weights).subspan(chunk.begin - anchor, chunk.tokens.size())});
        }
        return absl::OkStatus();
      });
}

/// Identifies the prompts as they are laid out: another model or tokenizer lays them out in another way.
kv::CheckpointPrompts CheckpointPromptsOf(const std::vector<prompt::PromptLayout>& layouts, int64_t fitted) {
  std::vector<std::vector<int32_t>> prompts;
  for (const prompt::PromptLayout& layout : layouts) {
    std::vector<int32_t>& numbers = prompts.emplace_back();
    for (const prompt::Span& span : layout.spans) numbers.push_back(span.begin);
    numbers.insert(numbers.end(), layout.token_ids.begin(), layout.token_ids.end());
  }
  return kv::CheckpointPrompts::Of(prompts, fitted);
}

kv::LearnerOptions LearnerOptionsOf(const ModelRuntime& runtime, Anchoring anchoring) {
  const store::KvFormat& format = runtime.key_space.format;
  return {.model_fingerprint = runtime.key_space.model_fingerprint,
          .anchoring = anchoring,
          .encoding = static_cast<uint32_t>(format.encoding),
          .num_layers = format.num_layers,
          .num_kv_heads = format.num_kv_heads,
          .head_dim = format.head_dim};
}

kv::LearnedCorrection WithKeyStrength(double strength, kv::LearnedCorrection correction) {
  for (kv::LayerCorrection& layer : correction.layers) {
    if (!layer.empty()) kv::ScaleKeyPart(strength, correction.rank, layer);
  }
  return correction;
}

/// How far step `index` of `count` goes: less while few gradients have been averaged, and in the end.
double StepRate(int64_t index, int64_t count) {
  constexpr double kRate = 0.003, kFirstSteps = 10, kLeast = 0.02;
  const double done = static_cast<double>(index) / static_cast<double>(count);
  return kRate * std::min(1.0, static_cast<double>(index + 1) / kFirstSteps) *
         ((1 + std::cos(std::numbers::pi * done)) / 2 + kLeast);
}

/// Each pass takes the prompts in another order.
int64_t PromptOfStep(int64_t step, int64_t prompts) {
  std::vector<int64_t> order(prompts);
  std::iota(order.begin(), order.end(), 0);
  std::minstd_rand random(static_cast<uint32_t>(1 + step / prompts));
  std::shuffle(order.begin(), order.end(), random);
  return order[step % prompts];
}

/// One run of Calibrate, step by step.
class Calibration {
 public:
  Calibration(ModelRuntime& runtime, store::ChunkStore& chunk_store, const CalibrationOptions& options,
              CalibrationProgress progress)
      : runtime_(runtime),
        options_(options),
        progress_(progress),
        runner_(runtime, chunk_store),
        placed_(runtime, runner_, options.anchoring),
        answers_(runtime, runner_, options.anchoring) {}

  absl::Status LayOutPrompts() {
    const int32_t most = runtime_.max_context_tokens - JudgedAnswers::kTokens;
    std::string first_left_out;
    for (size_t i = 0; i < options_.prompts.size(); ++i) {
      absl::StatusOr<prompt::PromptLayout> layout = prompt::BuildPromptLayout(
          options_.prompts[i], *runtime_.tokenizer, *runtime_.chat_template, {.max_chunks = 1 << 16});
      const auto said = [&](const absl::Status& status) {
        return absl::StrCat(NameOf(options_, i), ": ", status.message());
      };
      if (!layout.ok()) return absl::Status(layout.status().code(), said(layout.status()));
      const auto tokens = static_cast<int64_t>(layout->token_ids.size());
      if (tokens <= most) {
        layouts_.push_back(*std::move(layout));
      } else if (left_out_++ == 0) {
        first_left_out = said(PromptTooLongError(tokens, most));
      }
    }
    if (left_out_ > 0) {
      const std::string left_out = absl::StrCat(left_out_, " of ", options_.prompts.size(),
                                                " prompts are too long and left out, first ", first_left_out);
      if (layouts_.size() < 2) return absl::InvalidArgumentError(left_out);
      spdlog::warn("{}", left_out);
    }
    const auto count = static_cast<int64_t>(layouts_.size());
    const int64_t held_out =
        std::clamp<int64_t>(std::llround(options_.held_out * static_cast<double>(count)), 1, count - 1);
    fitted_ = count - held_out;
    KVBLEND_RETURN_IF_ERROR(CheckPairs(absl::MakeConstSpan(layouts_).subspan(0, fitted_),
                                       runtime_.key_space.format, options_.anchoring));
    passes_ = options_.attention_passes;
    if (passes_ < 0) passes_ = fitted_ >= kPromptsForAttention ? kAttentionPasses : 0;
    steps_ = count + fitted_ * passes_ + held_out;
    return absl::OkStatus();
  }

  /// The moments of all prompts; those in the checkpoint are not computed again.
  absl::StatusOr<kv::LearnerState> LearnMoments() {
    const auto count = static_cast<int64_t>(layouts_.size());
    const kv::MomentsCheckpoint checkpoint(options_.resume, LearnerOptionsOf(runtime_, options_.anchoring),
                                           CheckpointPromptsOf(layouts_, fitted_));
    KVBLEND_ASSIGN_OR_RETURN(kv::LearnerState learned, checkpoint.Restore());
    if (!options_.resume.empty()) {
      KVBLEND_RETURN_IF_ERROR(CheckRoomToReplace(options_.resume, checkpoint.file_bytes()));
    }
    const int64_t done = learned.fitted_chunks + learned.kept_back_chunks;
    const auto save = [&](int64_t /*prompts*/) { return checkpoint.Save(learned); };
    PeriodicSaves saves(done, save);
    for (int64_t i = done; i < count; ++i) {
      const bool fits = i < fitted_;
      KVBLEND_RETURN_IF_ERROR(
          saves.Step(i, progress_(i, steps_, fits ? "pairs to fit" : "pairs to judge by")));
      KVBLEND_RETURN_IF_ERROR(AddPairs(layouts_[i], placed_, fits ? learned.fitted : learned.kept_back));
      ++(fits ? learned.fitted_chunks : learned.kept_back_chunks);
    }
    saved_.Update(saves.End(count));
    return learned;
  }

  kv::LearnedCorrection Fit(const kv::LearnerState& learned) const {
    const store::KvFormat& format = runtime_.key_space.format;
    kv::LearnedCorrection correction{.model_fingerprint = runtime_.key_space.model_fingerprint,
                                     .anchoring = options_.anchoring,
                                     .num_kv_heads = format.num_kv_heads,
                                     .head_dim = format.head_dim};
    correction.rank = static_cast<int32_t>(std::min<int64_t>(options_.rank, correction.channels()));
    for (int32_t layer = 0; layer < format.num_layers; ++layer) {
      kv::LayerCorrection fit =
          kv::FitLayer(learned.fitted[layer], {.rank = correction.rank, .ridge = options_.ridge});
      // A layer that gains nothing gets no correction: the first, whose K and V depend on no other tokens.
      if (!(kv::ResidualShare(learned.kept_back[layer], fit, correction.rank) < 1)) fit = {};
      correction.layers.push_back(std::move(fit));
    }
    return correction;
  }

  /// `fit`, improved by what attention reads for the answers to the fitted prompts.
  absl::StatusOr<kv::LearnedCorrection> Tune(const kv::LearnedCorrection& fit, const Moments& pairs,
                                             int32_t num_threads) {
    KVBLEND_ASSIGN_OR_RETURN(CorrectionTuning tuning,
                             CorrectionTuning::Create(runtime_, fit, pairs, num_threads));
    const kv::TuningCheckpoint checkpoint(
        AttentionCheckpoint(options_), LearnerOptionsOf(runtime_, options_.anchoring),
        absl::StrCat(CheckpointPromptsOf(layouts_, fitted_).identity, ", rank ", fit.rank, ", ridge ",
                     options_.ridge, ", least gain ", kv::FitOptions().least_gain, ", passes ", passes_,
                     ", behind the output projection"));
    KVBLEND_ASSIGN_OR_RETURN(const int64_t done, checkpoint.Restore(tuning.tuners()));
    if (!options_.resume.empty()) {
      KVBLEND_RETURN_IF_ERROR(
          CheckRoomToReplace(AttentionCheckpoint(options_), checkpoint.FileBytes(tuning.tuners())));
    }
    const auto save = [&](int64_t steps) { return checkpoint.Save(steps, tuning.tuners()); };
    PeriodicSaves saves(done, save);
    std::vector<std::vector<int32_t>> answers(fitted_);
    const int64_t count = fitted_ * passes_;
    for (int64_t i = done; i < count; ++i) {
      KVBLEND_RETURN_IF_ERROR(saves.Step(
          i, progress_(static_cast<int64_t>(layouts_.size()) + i, steps_, "what attention reads")));
      const int64_t prompt = PromptOfStep(i, fitted_);
      if (answers[prompt].empty()) {
        KVBLEND_ASSIGN_OR_RETURN(answers[prompt], answers_.Answer(layouts_[prompt]));
      }
      KVBLEND_RETURN_IF_ERROR(
          tuning.Step({layouts_[prompt], answers[prompt]}, placed_, StepRate(i, count)).status());
    }
    saved_.Update(saves.End(count));
    return tuning.Mean();
  }

  /// Mean divergence of the answers kept back: without a correction, then with each of the given ones.
  absl::StatusOr<std::vector<double>> Judge(absl::Span<const kv::LearnedCorrection> corrections) {
    std::vector<std::shared_ptr<const kv::LoadedCorrection>> loaded;
    for (const kv::LearnedCorrection& correction : corrections) {
      KVBLEND_ASSIGN_OR_RETURN(loaded.emplace_back(),
                               kv::LoadedCorrection::Load(correction, "being judged", *runtime_.backend));
    }
    const auto count = static_cast<int64_t>(layouts_.size()), held_out = count - fitted_;
    std::vector<double> kl(1 + corrections.size());
    for (int64_t i = fitted_; i < count; ++i) {
      KVBLEND_RETURN_IF_ERROR(progress_(steps_ - (count - i), steps_, "answers kept back"));
      KVBLEND_ASSIGN_OR_RETURN(const std::vector<double> of_prompt,
                               answers_.Divergences(layouts_[i], loaded));
      for (size_t c = 0; c < kl.size(); ++c) kl[c] += of_prompt[c] / static_cast<double>(held_out);
    }
    return kl;
  }

  /// Not OK: in the end something of what a later run goes on from could not be saved.
  const absl::Status& saved() const { return saved_; }
  int32_t left_out_prompts() const { return left_out_; }
  int64_t attention_passes() const { return passes_; }
  int64_t fitted_prompts() const { return fitted_; }
  int64_t held_out_prompts() const { return static_cast<int64_t>(layouts_.size()) - fitted_; }

 private:
  ModelRuntime& runtime_;
  const CalibrationOptions& options_;
  const CalibrationProgress progress_;
  PromptRunner runner_;
  PlacedPrompt placed_;
  JudgedAnswers answers_;
  // First the fitted prompts, then those that are kept back.
  std::vector<prompt::PromptLayout> layouts_;
  int64_t fitted_ = 0, passes_ = 0, steps_ = 0;
  int32_t left_out_ = 0;
  absl::Status saved_;
};

}  // namespace

absl::StatusOr<CalibrationReport> Calibrate(const EngineOptions& engine, const CalibrationOptions& given,
                                            CalibrationProgress progress) {
  KVBLEND_RETURN_IF_ERROR(CheckEngineOptions(engine));
  KVBLEND_RETURN_IF_ERROR(Check(given));
  if (given.corpus.documents.empty()) KVBLEND_RETURN_IF_ERROR(CheckPrompts(given));
  const std::string output = given.path.empty() ? CorrectionPath(engine.model_path) : given.path;
  KVBLEND_RETURN_IF_ERROR(CheckCalibrationFiles(output, given));
  EngineOptions uncorrected = engine;
  uncorrected.correction = "none";
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(uncorrected));
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = engine.chunk_store_bytes}));
  CalibrationOptions options = given;
  if (options.prompts.empty() && !options.corpus.documents.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(options.prompts, prompt::PromptsOfCorpus(options.corpus, *runtime->tokenizer));
  }
  KVBLEND_RETURN_IF_ERROR(CheckPrompts(options));

  Calibration calibration(*runtime, *chunk_store, options, progress);
  KVBLEND_RETURN_IF_ERROR(calibration.LayOutPrompts());
  KVBLEND_ASSIGN_OR_RETURN(const kv::LearnerState learned, calibration.LearnMoments());
  const kv::LearnedCorrection fit = calibration.Fit(learned);
  std::vector<kv::LearnedCorrection> candidates;
  std::vector<double> strengths;
  const auto add = [&](const kv::LearnedCorrection& correction, double strength) {
    candidates.push_back(WithKeyStrength(strength, correction));
    strengths.push_back(strength);
  };
  for (const double strength : kKeyStrengths) add(fit, strength);
  if (calibration.attention_passes() > 0) {
    const int32_t threads = engine.num_threads > 0
                                ? engine.num_threads
                                : static_cast<int32_t>(std::thread::hardware_concurrency());
    KVBLEND_ASSIGN_OR_RETURN(const kv::LearnedCorrection tuned,
                             calibration.Tune(fit, learned.fitted, std::min(threads, kMaxTuningThreads)));
    for (const double strength : kKeyStrengths) add(tuned, strength);
  }
  const size_t fits = candidates.size();
  if (std::optional<kv::LearnedCorrection> there = CorrectionThere(output, *runtime, options.anchoring)) {
    candidates.push_back(*std::move(there));
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<double> kl, calibration.Judge(candidates));

  const auto first = kl.begin() + 1;
  const size_t best = std::min_element(first, first + static_cast<ptrdiff_t>(fits)) - first;
  kv::LearnedCorrection& correction = candidates[best];
  CalibrationReport report{.fitted_prompts = static_cast<int32_t>(calibration.fitted_prompts()),
                           .held_out_prompts = static_cast<int32_t>(calibration.held_out_prompts()),
                           .left_out_prompts = calibration.left_out_prompts(),
                           .fitted_tokens = learned.fitted.front().count(),
                           .kl_before = kl.front(),
                           .kl_after = kl[1 + best],
                           .kl_there = candidates.size() > fits ? std::optional(kl.back()) : std::nullopt,
                           .key_strength = strengths[best],
                           .by_attention = best >= std::size(kKeyStrengths),
                           .ranks = {},
                           .residual = {},
                           .path = output,
                           .version = {},
                           .saved = calibration.saved()};
  for (size_t layer = 0; layer < correction.layers.size(); ++layer) {
    if (layer > 0) report.ranks.push_back(kv::UsedRank(correction.layers[layer], correction.rank));
    report.residual.push_back(
        kv::ResidualShare(learned.kept_back[layer], correction.layers[layer], correction.rank));
  }
  if (!(report.kl_after < report.kl_before)) return report;
  if (!options.force && report.kl_there.value_or(report.kl_after) < report.kl_after) return report;
  correction.origin = {.data = options.origin,
                       .tokens = report.fitted_tokens,
                       .kl_before = report.kl_before,
                       .kl_after = report.kl_after};
  KVBLEND_RETURN_IF_ERROR(kv::WriteCorrectionFile(report.path, correction));
  report.version = kv::CorrectionVersion(kv::EncodeCorrection(correction));
  return report;
}

}  // namespace kvblend
