#include "engine/serve/sequences/explanation.h"

#include <algorithm>

#include "engine/text/stream_decoder.h"

namespace kvblend {

std::vector<ExplainedSpan> ExplainPrompt(const prompt::PromptLayout& layout, const text::Tokenizer& tokenizer,
                                         const blend::Candidates& candidates,
                                         const blend::PrefillResult& prefill) {
  std::vector<ExplainedSpan> explanation;
  text::StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  for (const prompt::Span& span : layout.spans) {
    if (span.size() == 0) continue;
    ExplainedSpan& explained = explanation.emplace_back();
    explained.part = span.kind;
    explained.chunk_index = span.kind == PromptPart::kChunk ? span.chunk_index : -1;
    explained.texts.reserve(span.size());
    for (int32_t position = span.begin; position < span.end; ++position) {
      explained.texts.push_back(decoder.Append(layout.token_ids[position]));
    }
    const auto first = std::lower_bound(prefill.recomputed.begin(), prefill.recomputed.end(), span.begin);
    const auto end = std::lower_bound(first, prefill.recomputed.end(), span.end);
    for (auto position = first; position != end; ++position) {
      explained.recomputed.push_back(*position - span.begin);
    }
  }
  if (!explanation.empty()) explanation.back().texts.back() += decoder.Flush();
  auto score = prefill.scores.begin();
  for (const blend::CandidateSpan& chosen_from : candidates.spans) {
    if (score == prefill.scores.end()) break;  // nothing was measured
    auto explained = explanation.begin();
    for (const prompt::Span& span : layout.spans) {
      if (span.size() == 0) continue;
      const int32_t begin = std::max(span.begin, chosen_from.begin),
                    end = std::min(span.end, chosen_from.end);
      if (begin < end) {
        explained->scores.resize(span.size());
        std::copy_n(score, end - begin, explained->scores.begin() + (begin - span.begin));
        score += end - begin;
      }
      ++explained;
    }
  }
  return explanation;
}

}  // namespace kvblend
