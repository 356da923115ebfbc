// The KV of whole prompts, for correction_gradients.py to run a model of its own over:
//   prompt_kv MODEL.gguf FOLDER --data FILE... --passages N,...
// FOLDER gets, for the prompts in their order, N.kv, f16 [layers, 2, question_begin, channels],
// little-endian: K before RoPE and V of each token before the question, first as they are reused without a
// correction (chunks behind the first as stored, the rest as full prefill has it), then as full prefill has
// them; and N.json: the prompt's tokens, the 16 tokens that full prefill answers, where the question begins,
// and [begin, tokens] of each chunk behind the first.
#include <Eigen/Core>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/serve/calibration/judged_answers.h"
#include "engine/serve/calibration/placed_prompt.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "nlohmann/json.hpp"
#include "tests/bench/models/questions.h"

namespace kvblend {
namespace {

absl::Status AppendHalves(std::ofstream& file, absl::Span<const float> values) {
  std::vector<Eigen::half> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 [](float value) { return Eigen::half(value); });
  file.write(reinterpret_cast<const char*>(halves.data()),
             static_cast<std::streamsize>(halves.size() * sizeof(Eigen::half)));
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write the KV of a prompt");
}

class PromptWriter {
 public:
  PromptWriter(ModelRuntime& runtime, store::ChunkStore& chunk_store, std::string folder)
      : folder_(std::move(folder)),
        runner_(runtime, chunk_store),
        placed_(runtime, runner_, Anchoring::kAnchored),
        answers_(runtime, runner_, Anchoring::kAnchored) {}

  absl::Status Write(const prompt::PromptLayout& layout) {
    const std::string path = absl::StrCat(folder_, "/", count_++);
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, answers_.Answer(layout));
    const auto question = static_cast<size_t>(layout.spans.back().begin);
    std::ofstream file(path + ".kv", std::ios::binary);
    std::vector<std::pair<int32_t, size_t>> begins;
    KVBLEND_RETURN_IF_ERROR(placed_.VisitLayers(
        layout, /*answer=*/{},
        [&](const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk> chunks) -> absl::Status {
          const size_t channels = layer.fresh().size() / layout.token_ids.size();
          const absl::Span<const float> fresh = layer.fresh().first(question * channels);
          std::vector<float> reused(fresh.begin(), fresh.end());
          for (const PlacedPrompt::Chunk& chunk : chunks) {
            KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> stored, layer.StoredOf(chunk));
            std::copy(stored.begin(), stored.end(), reused.begin() + chunk.begin * channels);
            if (layer.index() == 0) begins.emplace_back(chunk.begin, chunk.tokens.size());
          }
          KVBLEND_RETURN_IF_ERROR(AppendHalves(file, reused));
          return AppendHalves(file, fresh);
        }));
    if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", path, ".kv"));
    const nlohmann::ordered_json about = {
        {"tokens", layout.token_ids}, {"answer", answer}, {"question_begin", question}, {"chunks", begins}};
    return WriteText(path + ".json", about.dump() + "\n");
  }

 private:
  const std::string folder_;
  PromptRunner runner_;
  PlacedPrompt placed_;
  JudgedAnswers answers_;
  int64_t count_ = 0;
};

absl::Status Run(QuestionOptions options) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, LoadForQuestions(options));
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = options.engine.chunk_store_bytes}));
  PromptWriter writer(*runtime, *chunk_store, options.folder);
  return ForEachQuestion(
      *runtime, options, JudgedAnswers::kTokens,
      [&](const prompt::PromptLayout& layout, size_t, size_t) { return writer.Write(layout); });
}

}  // namespace
}  // namespace kvblend

int main(int argc, char** argv) {
  kvblend::QuestionOptions options;
  CLI::App app("The KV of whole prompts, stored and of full prefill, for correction_gradients.py");
  kvblend::AddQuestionOptions(app, options);
  kvblend::ParseOrExit(app, argc, argv);
  return kvblend::ExitCode(kvblend::Run(std::move(options)));
}
