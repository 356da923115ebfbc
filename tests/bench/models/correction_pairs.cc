// The pairs that a correction of stored KV is fitted to, for correction_study.py to fit other things to them:
//   correction_pairs MODEL.gguf FOLDER --data FILE... --passages N,... --layers L,...
// Of every chunk behind the first its tokens 0 to 3 and every --every-th one. FOLDER gets, little-endian and in the same
// order, for each layer L
//   L.stored, L.fresh    f32 [pairs, channels]: K before RoPE and V, as stored and as full prefill has them
//   L.weights            f32 [pairs]: what the fit counts a pair, times the tokens that it stands for
//   L.before             f32 [chunks, channels]: the mean of what is stored of all chunks in front of it
// and pairs.json: what was asked, the number of channels, what kvblend's own fit would take (rank, ridge), [file, question] of
// each prompt, [prompt, begin] of each chunk, and [chunk, place] of each pair (kernels/kv_correction_place.h).
#include <algorithm>
#include <cstdio>
#include <filesystem>
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
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/calibration/placed_prompt.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "kernels/kv_correction_place.h"
#include "nlohmann/json.hpp"
#include "server/cli/bench/dataset.h"
#include "server/convert/requests.h"
#include "tests/bench/arguments.h"

namespace kvblend {
namespace {

constexpr int32_t kFirstTokens = 4;

struct Options {
  EngineOptions engine;
  std::string folder;
  std::vector<std::string> data;
  std::vector<int> passages = {5};  // one for all files, or one for each
  std::vector<int> layers;
  size_t first = 0, n = 0;
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

  absl::Status Add(const server::cli::BenchQuestion& question, int passages,
                   const std::vector<size_t>& whence) {
    v1::GenerateRequest wire;
    *wire.mutable_prompt() = server::cli::MakePrompt(question, passages);
    KVBLEND_ASSIGN_OR_RETURN(GenerateRequest request, server::FromProto(std::move(wire)));
    KVBLEND_ASSIGN_OR_RETURN(
        const prompt::PromptLayout layout,
        prompt::BuildPromptLayout(request.prompt, *runtime_.tokenizer, *runtime_.chat_template,
                                  {.max_prompt_tokens = runtime_.max_context_tokens, .max_chunks = 1 << 16}));
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
  if (options.passages.size() != 1 && options.passages.size() != options.data.size()) {
    return absl::InvalidArgumentError("--passages: one number, or one for each file of --data");
  }
  options.engine.correction = "none";
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(options.engine));
  for (const int layer : options.layers) {
    if (layer < 0 || layer >= runtime->config.num_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layers has ", layer, "; allowed: 0 to ", runtime->config.num_layers - 1));
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = options.engine.chunk_store_bytes}));
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(options.folder, ": ", error.message()));
  PairWriter writer(*runtime, *chunk_store, options);
  for (size_t file = 0; file < options.data.size(); ++file) {
    KVBLEND_ASSIGN_OR_RETURN(const auto questions, server::cli::LoadQuestions(options.data[file]));
    const int passages = options.passages[options.passages.size() == 1 ? 0 : file];
    const size_t end =
        options.n == 0 ? questions.size() : std::min(questions.size(), options.first + options.n);
    for (size_t q = options.first; q < end; ++q) {
      std::fprintf(stderr, "\r%s: question %zu of %zu", options.data[file].c_str(), q + 1, end);
      KVBLEND_RETURN_IF_ERROR(writer.Add(questions[q], passages, {file, q}));
    }
    std::fprintf(stderr, "\n");
  }
  return writer.Finish();
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  kvblend::Options options;
  CLI::App app("Pairs of stored KV and full prefill's, for correction_study.py");
  app.add_option("MODEL", options.engine.model_path, "GGUF file")->required();
  app.add_option("FOLDER", options.folder, "where the pairs go")->required();
  app.add_option("--data", options.data, "JSON lists of {question, answers[], ctxs: [{title, text}]}")
      ->required();
  app.add_option("--passages", options.passages, "per question, a number for all files or one for each")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--layers", options.layers, "whose pairs are written")->delimiter(',')->required();
  app.add_option("--first", options.first, "begin with this question of each file")->capture_default_str();
  app.add_option("--n", options.n, "so many questions of each file; 0: all")->capture_default_str();
  app.add_option("--every", options.every, "one of so many tokens stands for all")
      ->check(kvblend::Count())
      ->capture_default_str();
  app.add_option("--threads", options.engine.num_threads, "0: one per processor")->check(kvblend::Count(0));
  kvblend::ParseOrExit(app, argc, argv);
  return kvblend::ExitCode(kvblend::Run(std::move(options)));
}
