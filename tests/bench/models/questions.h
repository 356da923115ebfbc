// The questions that tools about corrections of stored KV go through, as kvblend calibrate lays them out.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "server/cli/bench/dataset.h"
#include "server/convert/requests.h"
#include "tests/bench/arguments.h"

namespace kvblend {

struct QuestionOptions {
  EngineOptions engine;
  std::string folder;  // where the tool writes
  std::vector<std::string> data;
  std::vector<int> passages = {5};  // one for all files, or one for each
  size_t first = 0, n = 0;
};

inline void AddQuestionOptions(CLI::App& app, QuestionOptions& options) {
  app.add_option("MODEL", options.engine.model_path, "GGUF file")->required();
  app.add_option("FOLDER", options.folder, "where the files go")->required();
  app.add_option("--data", options.data, "JSON lists of {question, answers[], ctxs: [{title, text}]}")
      ->required();
  app.add_option("--passages", options.passages, "per question, a number for all files or one for each")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--first", options.first, "begin with this question of each file")->capture_default_str();
  app.add_option("--n", options.n, "so many questions of each file; 0: all")->capture_default_str();
  app.add_option("--threads", options.engine.num_threads, "0: one per processor")->check(Count(0));
}

/// The model without a correction, and the folder. Errors name what is wrong with the options, too.
inline absl::StatusOr<std::unique_ptr<ModelRuntime>> LoadForQuestions(QuestionOptions& options) {
  if (options.passages.size() != 1 && options.passages.size() != options.data.size()) {
    return absl::InvalidArgumentError("--passages: one number, or one for each file of --data");
  }
  options.engine.correction = "none";
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(options.engine));
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(options.folder, ": ", error.message()));
  return runtime;
}

using QuestionVisitor =
    absl::FunctionRef<absl::Status(const prompt::PromptLayout& layout, size_t file, size_t question)>;

/// `behind`: tokens that must have room behind each prompt
inline absl::Status ForEachQuestion(const ModelRuntime& runtime, const QuestionOptions& options,
                                    int32_t behind, QuestionVisitor visit) {
  for (size_t file = 0; file < options.data.size(); ++file) {
    KVBLEND_ASSIGN_OR_RETURN(const auto questions, server::cli::LoadQuestions(options.data[file]));
    const int passages = options.passages[options.passages.size() == 1 ? 0 : file];
    const size_t end =
        options.n == 0 ? questions.size() : std::min(questions.size(), options.first + options.n);
    for (size_t q = options.first; q < end; ++q) {
      std::fprintf(stderr, "\r%s: question %zu of %zu", options.data[file].c_str(), q + 1, end);
      v1::GenerateRequest wire;
      *wire.mutable_prompt() = server::cli::MakePrompt(questions[q], passages);
      KVBLEND_ASSIGN_OR_RETURN(const GenerateRequest request, server::FromProto(std::move(wire)));
      KVBLEND_ASSIGN_OR_RETURN(
          const prompt::PromptLayout layout,
          prompt::BuildPromptLayout(
              request.prompt, *runtime.tokenizer, *runtime.chat_template,
              {.max_prompt_tokens = runtime.max_context_tokens - behind, .max_chunks = 1 << 16}));
      KVBLEND_RETURN_IF_ERROR(visit(layout, file, q));
    }
    std::fprintf(stderr, "\n");
  }
  return absl::OkStatus();
}

}  // namespace kvblend
