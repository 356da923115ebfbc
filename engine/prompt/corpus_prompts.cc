#include "engine/prompt/corpus_prompts.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/prompt/document_splitter.h"

namespace kvblend::prompt {
namespace {

// Which texts stand here matters little: the fit learns what any text before a chunk does to it.
constexpr char kSystemText[] =
    "You are a helpful AI assistant. Answer the question based on the given passages.";
constexpr char kLeadIn[] = "Passages:\n\n";
constexpr char kQuestion[] = "Question: What do the passages above say, and about whom or what?";

absl::Status Check(const CalibrationCorpus& corpus) {
  if (corpus.chunks_per_prompt < 2 || corpus.chunks_per_prompt > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks per prompt are ", corpus.chunks_per_prompt, "; allowed: 2 to 1000"));
  }
  if (corpus.max_prompts < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the most prompts are ", corpus.max_prompts, "; allowed: 0 (all) and up"));
  }
  return ValidateSplitOptions({.chunk_tokens = corpus.chunk_tokens, .overlap_tokens = 0});
}

}  // namespace

absl::StatusOr<std::vector<Prompt>> PromptsOfCorpus(const CalibrationCorpus& corpus,
                                                    const text::Tokenizer& tokenizer) {
  KVBLEND_RETURN_IF_ERROR(Check(corpus));
  std::vector<std::string> chunks;
  for (const std::string& document : corpus.documents) {
    const SplitOptions options = {.chunk_tokens = corpus.chunk_tokens, .overlap_tokens = 0};
    const auto add = [&](const DocumentChunk& chunk) {
      chunks.push_back(absl::StrCat(document.substr(chunk.begin, chunk.end - chunk.begin), "\n\n"));
      return absl::OkStatus();
    };
    KVBLEND_RETURN_IF_ERROR(SplitDocument(document, /*goes_on=*/false, options, tokenizer, add).status());
  }
  std::mt19937 random(1);
  for (size_t i = chunks.size(); i > 1; --i) std::swap(chunks[i - 1], chunks[random() % i]);

  const auto per_prompt = static_cast<size_t>(corpus.chunks_per_prompt);
  size_t num_prompts = chunks.size() / per_prompt;
  if (num_prompts < 2) {
    return absl::InvalidArgumentError(absl::StrCat("the documents have ", chunks.size(), " chunks of up to ",
                                                   corpus.chunk_tokens, " tokens; allowed: at least ",
                                                   2 * per_prompt, ", two prompts of ", per_prompt));
  }
  if (corpus.max_prompts > 0) num_prompts = std::min(num_prompts, static_cast<size_t>(corpus.max_prompts));
  std::vector<Prompt> prompts(num_prompts);
  auto next = chunks.begin();
  for (Prompt& prompt : prompts) {
    prompt.system_text = kSystemText;
    prompt.lead_in = kLeadIn;
    prompt.question = kQuestion;
    std::move(next, next + per_prompt, std::back_inserter(prompt.chunks));
    next += per_prompt;
  }
  return prompts;
}

}  // namespace kvblend::prompt
