// The prompt that the benches measure: a question with its passages from a data file.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "nlohmann/json.hpp"
#include "tests/bench/arguments.h"

namespace kvblend {

/// Which prompt, as the command line names it.
struct BenchPrompt {
  std::string data_path;
  int question = 0, passages = 10;

  /// Adds these settings and the engine's.
  void AddArguments(CLI::App& app, EngineOptions& engine) {
    AddEngineArguments(app, engine, data_path);
    app.add_option("--passages", passages, "chunks of the prompt (10)");
    app.add_option("--question", question, "which of DATA's questions (0)");
  }
  absl::StatusOr<Prompt> Read() const;
};

inline absl::StatusOr<Prompt> BenchPrompt::Read() const {
  std::ifstream file(data_path);
  const nlohmann::json data = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (data.is_discarded() || question < 0 || question >= static_cast<int>(data.size())) {
    return absl::InvalidArgumentError("no such data or question");
  }
  Prompt prompt;
  prompt.system_text =
      "You are a helpful AI assistant. Answer the question based on the given passages. Answer with a few "
      "words only.";
  prompt.lead_in = "Passages:\n\n";
  const nlohmann::json& entry = data[question];
  for (int i = 0; i < std::min<int>(passages, entry["ctxs"].size()); ++i) {
    const nlohmann::json& passage = entry["ctxs"][i];
    prompt.chunks.push_back(passage["title"].get<std::string>() + "\n" + passage["text"].get<std::string>() +
                            "\n\n");
  }
  prompt.question =
      "Question: " + entry["question"].get<std::string>() + "\nAnswer the question with a few words only.";
  return prompt;
}

}  // namespace kvblend
