// The pairs that a correction of stored KV is fitted to, for correction_study.py to fit other things to them:
//   correction_pairs MODEL.gguf FOLDER --data FILE... --passages N,... --layers L,...
// Of every chunk behind the first its tokens 0 to 3 and every --every-th one. FOLDER gets, little-endian and
// in the same order, for each layer L
//   L.stored, L.fresh    f32 [pairs, channels]: K before RoPE and V, as stored and as full prefill has them
//   L.weights            f32 [pairs]: what the fit counts a pair, times the tokens that it stands for
//   L.before             f32 [chunks, channels]: the mean of what is stored of all chunks in front of it
// and pairs.json: what was asked, the number of channels, what kvblend's own fit would take (rank, ridge),
// [file, question] of each prompt, [prompt, begin] of each chunk, and [chunk, place] of each pair
// (kernels/kv_correction_place.h).
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/kv/correction_fit.h"
#include "engine/kv/pair_moments.h"
#include "engine/serve/calibration/placed_prompt.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "kernels/kv_correction_place.h"
#include "nlohmann/json.hpp"
#include "tests/bench/models/questions.h"

namespace kvblend {
namespace {

constexpr int32_t kFirstTokens = 4;

struct Options : QuestionOptions {
  std::vector<int> layers;
  int32_t every = 4;
};

absl::Status Append(std::ofstream& file, absl::Span<const float> values) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write pairs");
}

struct LayerFiles {
  std::ofstream stored, fresh, weights, before;

  explicit LayerFiles(const std::string& prefix)
      : stored(prefix + ".stored", std::ios::binary),
        fresh(prefix + ".fresh", std::ios::binary),
        weights(prefix + ".weights", std::ios::binary),
        before(prefix + ".before", std::ios::binary) {}
};

/// Rows of [tokens, channels], added up.
class RunningMean {
 public:
  explicit RunningMean(int64_t channels) : sum_(channels) {}
  void Add(absl::Span<const float> rows) {
    for (size_t at = 0; at < rows.size(); ++at) sum_[at % sum_.size()] += rows[at];
    count_ += static_cast<double>(rows.size() / sum_.size());
  }
  std::vector<float> Mean() const {
    std::vector<float> mean;
    for (const double sum : sum_) mean.push_back(static_cast<float>(sum / std::max(count_, 1.0)));
    return mean;
  }

 private:
  std::vector<double> sum_;
  double count_ = 0;
};

class PairWriter {
 public:
  PairWriter(ModelRuntime& runtime, store::ChunkStore& chunk_store, const Options& options)
      : runtime_(runtime),
        options_(options),
        runner_(runtime, chunk_store),
        placed_(runtime, runner_, Anchoring::kAnchored) {
    for (const int layer : options.layers) files_.emplace_back(absl::StrCat(options.folder, "/", layer));
  }

  absl::Status Add(const prompt::PromptLayout& layout, const std::vector<size_t>& whence) {
    const size_t first_chunk = chunks_.size();
    KVBLEND_RETURN_IF_ERROR(placed_.VisitLayers(
        layout, /*answer=*/{},
        [&](const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk> chunks) -> absl::Status {
          const auto at = std::find(options_.layers.begin(), options_.layers.end(), layer.index());
          if (at == options_.layers.end()) return absl::OkStatus();
          const bool is_first = at == options_.layers.begin();
          return AddLayer(layout, layer, chunks, is_first, files_[at - options_.layers.begin()]);
        }));
    if (chunks_.size() == first_chunk) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", prompts_.size(), " has no second chunk"));
    }
    prompts_.push_back(whence);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    for (LayerFiles& files : files_) {
      for (std::ofstream* file : {&files.stored, &files.fresh, &files.weights, &files.before}) {
        if (!file->flush()) return absl::UnavailableError("cannot write pairs");
      }
    }
    const nlohmann::ordered_json report = {{"model", options_.engine.model_path},
                                           {"data", options_.data},
                                           {"passages", options_.passages},
                                           {"layers", options_.layers},
                                           {"channels", channels_},
                                           {"places", kernels::kNumKvCorrectionPlaces},
                                           {"rank", kv::FitOptions().rank},
                                           {"ridge", kv::FitOptions().ridge},
                                           {"prompts", prompts_},
                                           {"chunks", chunks_},
                                           {"pairs", pairs_}};
    return WriteText(options_.folder + "/pairs.json", report.dump() + "\n");
  }

 private:
  absl::Status AddLayer(const prompt::PromptLayout& layout, const PlacedPrompt::Layer& layer,
                        absl::Span<const PlacedPrompt::Chunk> chunks, bool is_first, LayerFiles& files) {
    const auto anchor = static_cast<int64_t>(layout.anchor_ids.size());
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> mass, layer.QuestionMass());
    const std::vector<float> weights = kv::WeightsOfMass(absl::MakeConstSpan(mass).subspan(anchor));
    channels_ = static_cast<int64_t>(layer.fresh().size() / layout.token_ids.size());
    RunningMean before(channels_);
    // The first chunk stands behind its anchor: what is stored of it is what full prefill has.
    before.Add(layer.fresh().subspan(anchor * channels_, (chunks.front().begin - anchor) * channels_));
    for (const PlacedPrompt::Chunk& chunk : chunks) {
      KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> stored, layer.StoredOf(chunk));
      const absl::Span<const float> fresh = layer.FreshOf(chunk);
      KVBLEND_RETURN_IF_ERROR(Append(files.before, before.Mean()));
      before.Add(stored);
      if (is_first) chunks_.push_back({static_cast<int64_t>(prompts_.size()), chunk.begin});
      for (const int32_t token : chunk.tokens) {
        const bool stands_for_others = token >= kFirstTokens;
        if (stands_for_others && token % options_.every != 0) continue;
        if (is_first) {
          pairs_.push_back({static_cast<int64_t>(chunks_.size()) - 1, kernels::KvCorrectionPlace(token)});
        }
        const float weight = weights[chunk.begin - anchor + token] *
                             static_cast<float>(stands_for_others ? options_.every : 1);
        KVBLEND_RETURN_IF_ERROR(
            Append(files.stored, absl::MakeConstSpan(stored).subspan(token * channels_, channels_)));
        KVBLEND_RETURN_IF_ERROR(Append(files.fresh, fresh.subspan(token * channels_, channels_)));
        KVBLEND_RETURN_IF_ERROR(Append(files.weights, {weight}));
      }
    }
    return absl::OkStatus();
  }

  ModelRuntime& runtime_;
  const Options& options_;
  PromptRunner runner_;
  PlacedPrompt placed_;
  std::vector<LayerFiles> files_;
  int64_t channels_ = 0;
  std::vector<std::vector<size_t>> prompts_;
  std::vector<std::vector<int64_t>> chunks_, pairs_;
};

absl::Status Run(Options options) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, LoadForQuestions(options));
  for (const int layer : options.layers) {
    if (layer < 0 || layer >= runtime->config.num_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layers has ", layer, "; allowed: 0 to ", runtime->config.num_layers - 1));
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = options.engine.chunk_store_bytes}));
  PairWriter writer(*runtime, *chunk_store, options);
  KVBLEND_RETURN_IF_ERROR(ForEachQuestion(*runtime, options, /*behind=*/0,
                                          [&](const prompt::PromptLayout& layout, size_t file, size_t q) {
                                            return writer.Add(layout, {file, q});
                                          }));
  return writer.Finish();
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  kvblend::Options options;
  CLI::App app("Pairs of stored KV and full prefill's, for correction_study.py");
  kvblend::AddQuestionOptions(app, options);
  app.add_option("--layers", options.layers, "whose pairs are written")->delimiter(',')->required();
  app.add_option("--every", options.every, "one of so many tokens stands for all")
      ->check(kvblend::Count())
      ->capture_default_str();
  kvblend::ParseOrExit(app, argc, argv);
  return kvblend::ExitCode(kvblend::Run(std::move(options)));
}
