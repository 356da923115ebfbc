// The prompt that the benches measure: a question with its passages from a data file.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "nlohmann/json.hpp"

namespace kvblend {

/// `path`: a JSON list of {question, ctxs: [{title, text}]}.
inline absl::StatusOr<Prompt> ReadBenchPrompt(const std::string& path, int question, int passages) {
  std::ifstream file(path);
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
