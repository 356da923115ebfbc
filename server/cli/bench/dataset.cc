#include "server/cli/bench/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/cli/content_hash.h"
#include "server/cli/files.h"

namespace kvblend::server::cli {
namespace {

constexpr char kSystemText[] =
    "You are a helpful AI assistant. Answer the question based on the given passages. "
    "Answer with a few words only.";
constexpr char kLeadIn[] = "Passages:\n\n";

using Json = nlohmann::json;

absl::Status Bad(size_t index, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("question ", index, ": ", what));
}

absl::StatusOr<std::string> StringAt(const Json& object, const char* key, size_t index) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return Bad(index, absl::StrCat("'", key, "' must be a string"));
  return it->get<std::string>();
}

absl::StatusOr<BenchQuestion> ParseQuestion(const Json& object, size_t index) {
  if (!object.is_object()) return Bad(index, "must be an object with question, answers and ctxs");
  BenchQuestion result;
  KVBLEND_ASSIGN_OR_RETURN(result.question, StringAt(object, "question", index));
  if (object.contains("cue")) {
    KVBLEND_ASSIGN_OR_RETURN(result.cue, StringAt(object, "cue", index));
  }
  if (object.contains("system")) {
    KVBLEND_ASSIGN_OR_RETURN(result.system_text, StringAt(object, "system", index));
  }
  const auto answers = object.find("answers");
  if (answers == object.end() || !answers->is_array() || answers->empty()) {
    return Bad(index, "'answers' must be a list of at least one string");
  }
  for (const Json& answer : *answers) {
    if (!answer.is_string()) return Bad(index, "'answers' must hold strings only");
    result.answers.push_back(answer.get<std::string>());
  }

  const auto passages = object.find("ctxs");
  if (passages == object.end() || !passages->is_array() || passages->empty()) {
    return Bad(index, "'ctxs' must be a list of at least one {title, text}");
  }
  for (const Json& passage : *passages) {
    if (!passage.is_object()) return Bad(index, "'ctxs' must hold objects with title and text");
    Passage& added = result.passages.emplace_back();
    KVBLEND_ASSIGN_OR_RETURN(added.title, StringAt(passage, "title", index));
    KVBLEND_ASSIGN_OR_RETURN(added.text, StringAt(passage, "text", index));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<BenchQuestion>> ParseQuestions(std::string_view json) {
  const Json document = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return absl::InvalidArgumentError("the data is not valid JSON");
  if (!document.is_array() || document.empty()) {
    return absl::InvalidArgumentError("the data must be a JSON list of at least one question");
  }
  std::vector<BenchQuestion> questions;
  questions.reserve(document.size());
  for (size_t i = 0; i < document.size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(questions.emplace_back(), ParseQuestion(document[i], i));
  }
  return questions;
}

absl::StatusOr<std::vector<BenchQuestion>> LoadQuestions(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(path));
  auto questions = ParseQuestions(content);
  if (!questions.ok()) {
    return absl::Status(questions.status().code(), absl::StrCat(path, ": ", questions.status().message()));
  }
  return questions;
}

std::string HashOf(const v1::Prompt& prompt) {
  std::string texts;
  const auto add = [&](const std::string& text) { absl::StrAppend(&texts, text.size(), ":", text); };
  add(prompt.system_text());
  add(prompt.lead_in());
  for (const std::string& chunk : prompt.chunks()) add(chunk);
  add(prompt.question());
  return ContentHash(texts);
}

std::string HashOf(const BenchQuestion& question, int max_passages) {
  return ContentHash(
      absl::StrCat(HashOf(MakePrompt(question, max_passages)), absl::StrJoin(question.answers, "\n")));
}

v1::Prompt MakePrompt(const BenchQuestion& question, int max_passages) {
  v1::Prompt prompt;
  prompt.set_system_text(question.system_text.empty() ? kSystemText : question.system_text);
  prompt.set_lead_in(kLeadIn);
  const size_t available = question.passages.size();
  const size_t count = max_passages > 0 ? std::min<size_t>(max_passages, available) : available;
  for (size_t i = 0; i < count; ++i) {
    prompt.add_chunks(absl::StrCat(question.passages[i].title, "\n", question.passages[i].text, "\n\n"));
  }
  prompt.set_question(absl::StrCat("Question: ", question.question,
                                   "\nAnswer the question with a few words only.", question.cue));
  return prompt;
}

}  // namespace kvblend::server::cli
