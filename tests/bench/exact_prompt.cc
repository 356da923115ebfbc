#include "tests/bench/exact_prompt.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "nlohmann/json.hpp"
#include "tests/bench/arguments.h"

namespace kvblend {
namespace {

constexpr std::string_view kFiller = " the";  // one token, whatever stands before it

std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin + 1), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

}  // namespace

absl::StatusOr<ExactPrompts> ExactPrompts::Read(const std::string& data_path) {
  std::ifstream file(data_path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", data_path));
  const nlohmann::json data = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ExactPrompts prompts;
  if (data.is_array()) {
    for (const nlohmann::json& entry : data) {
      if (!entry.is_object() || !entry.contains("ctxs") || !entry["ctxs"].is_array()) continue;
      for (const nlohmann::json& passage : entry["ctxs"]) {
        if (!passage.is_object() || !passage.contains("text") || !passage["text"].is_string()) continue;
        for (std::string& word : WordsOf(" " + passage["text"].get<std::string>())) {
          prompts.words_.push_back(std::move(word));
        }
      }
    }
  }
  if (prompts.words_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(data_path, " has no passages; expected: a JSON list of {ctxs: [{text}]}"));
  }
  return prompts;
}

Prompt ExactPrompts::Frame() const {
  Prompt prompt;
  prompt.system_text = "You are a helpful AI assistant.";
  prompt.lead_in = "Passages:\n\n";
  prompt.chunks = {""};
  prompt.question = "\n\nQuestion: What are the passages about?";
  return prompt;
}

std::string ExactPrompts::Text(size_t num_words) const {
  std::string text;
  for (size_t i = 0; i < num_words; ++i) text += words_[i % words_.size()];
  return text;
}

absl::StatusOr<Prompt> ExactPrompts::Make(int32_t chunk_tokens, TokenCounter count) const {
  if (chunk_tokens < 0) {
    return absl::InvalidArgumentError("a prompt has more tokens than that without any chunk");
  }
  // The most words that fit; every word has a token or more.
  size_t fits = 0, too_many = static_cast<size_t>(chunk_tokens) + 1;
  while (too_many - fits > 1) {
    const size_t middle = (fits + too_many) / 2;
    KVBLEND_ASSIGN_OR_RETURN(const int32_t tokens, count(Text(middle)));
    (tokens <= chunk_tokens ? fits : too_many) = middle;
  }
  Prompt prompt = Frame();
  std::string& chunk = prompt.chunks[0];
  chunk = Text(fits);
  KVBLEND_ASSIGN_OR_RETURN(int32_t tokens, count(chunk));
  while (tokens < chunk_tokens) {
    chunk += kFiller;
    KVBLEND_ASSIGN_OR_RETURN(tokens, count(chunk));
  }
  if (tokens != chunk_tokens) {
    return absl::InternalError(
        absl::StrCat("the text cannot be cut to ", chunk_tokens, " tokens: it has ", tokens));
  }
  return prompt;
}

absl::Status WriteTokens(const EngineOptions& engine, const std::string& data_path,
                         const std::vector<int32_t>& sizes, const std::string& json_path) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(engine));
  KVBLEND_ASSIGN_OR_RETURN(const ExactPrompts prompts, ExactPrompts::Read(data_path));
  const auto layout = [&](const Prompt& prompt) {
    return prompt::BuildPromptLayout({.system_text = prompt.system_text,
                                      .lead_in = prompt.lead_in,
                                      .chunks = prompt.chunks,
                                      .question = prompt.question},
                                     *runtime->tokenizer, *runtime->chat_template, {});
  };
  const auto count = [&](std::string_view text) -> absl::StatusOr<int32_t> {
    return static_cast<int32_t>(runtime->tokenizer->Encode(text).size());
  };
  KVBLEND_ASSIGN_OR_RETURN(const prompt::PromptLayout frame, layout(prompts.Frame()));
  const auto frame_tokens = static_cast<int32_t>(frame.token_ids.size());
  nlohmann::ordered_json tokens;
  for (const int32_t size : sizes) {
    KVBLEND_ASSIGN_OR_RETURN(const Prompt prompt, prompts.Make(size - frame_tokens, count));
    KVBLEND_ASSIGN_OR_RETURN(const prompt::PromptLayout whole, layout(prompt));
    tokens[std::to_string(size)] = whole.token_ids;
  }
  return WriteText(json_path, tokens.dump() + "\n");
}

}  // namespace kvblend
