// Passages that a chain has pasted into one text, and what stands between them:
//
//     "Use these passages.\n\n" | Paris is .. | "\n\n" | Rome is .. | "\n\nQuestion: Where is ..?"
//              text               passage       text     passage      the question
//
// A passage is a known text (known_texts.h), wherever it stands; and if asked for, a paragraph: what lies between two blank
// lines, as LangChain's and LlamaIndex's chains join their documents, and the last line before the first blank line, on which
// prompts like "Answer from this context:\nParis is .." have their first document. These follow from the paragraph
// alone, so the same one is cut in the same way in whatever order it comes. Short ones are left to the text around them.
// What lies behind the last passage is the question; it is not blank. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/prompt/split/known_texts.h"

namespace kvblend::prompt {

inline constexpr size_t kMinPassageBytes = 128;  // of a paragraph

/// The passages of a text, ascending; at most `max_passages`, the first ones. `known`: KnownTexts::Find of this text.
std::vector<TextRange> FindPassages(std::string_view text, const std::vector<TextRange>& known,
                                    bool paragraphs, size_t max_passages);

/// Cuts the question, and the texts of earlier turns of the user's that have no chunks, into chunks: passages, and what
/// lies before and between them. Together they are the same text. At most `max_chunks` of all turns together. `namespaces`:
/// whose texts are known. Returns which of prompt->chunks are passages, ascending.
/// REQUIRES: prompt->chunks is empty; how is not kNone
std::vector<int32_t> SplitPrompt(PromptSplit how, const KnownTexts& known,
                                 absl::Span<const std::string> namespaces, int32_t max_chunks,
                                 Prompt* prompt);

/// Marks the spans of chunks that are no passages as text: nothing is stored of them. `passages`: what SplitPrompt has returned.
void MarkTextBetween(const std::vector<int32_t>& passages, PromptLayout* layout);

}  // namespace kvblend::prompt
