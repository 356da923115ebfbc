// Multi-document questions for the bench, and the prompt that is made of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server::cli {

struct Passage {
  std::string title;
  std::string text;
};

struct BenchQuestion {
  std::string question;
  std::vector<std::string> answers;  // at least one; the first is the one whose likelihood is measured
  std::vector<Passage> passages;     // at least one
  std::string cue = {};              // ends the prompt, for models that write on; mostly empty
  std::string system_text = {};      // in place of the bench's own; mostly empty
};

/// Reads a JSON list of {question, answers[], ctxs: [{title, text}]}, the form in which the CacheBlend
/// authors published their data, with "cue" and "system" beside them if need be. Other keys are ignored.
/// kNotFound: no such file; kInvalidArgument: anything else that is wrong, with the question's index and the
/// key.
absl::StatusOr<std::vector<BenchQuestion>> LoadQuestions(const std::string& path);
absl::StatusOr<std::vector<BenchQuestion>> ParseQuestions(std::string_view json);

/// The prompt over the first `max_passages` passages (0: all). Every passage is one chunk:
/// "{title}\n{text}\n\n".
v1::Prompt MakePrompt(const BenchQuestion& question, int max_passages);

/// Tells prompts apart by their texts.
std::string HashOf(const v1::Prompt& prompt);
/// Tells questions apart by the prompt that is made of them and by their answers.
std::string HashOf(const BenchQuestion& question, int max_passages);

}  // namespace kvblend::server::cli
