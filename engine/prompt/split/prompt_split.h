// Finds the passages that a client has pasted into one text:
//
//     "Use these passages.\n\n" | Paris is .. | "\n\n" | Rome is .. | "\n\nQuestion: Where is ..?"
//              text               passage       text     passage      the question
//
// A passage is a known text (known_texts.h), wherever it is, and, if asked for, a paragraph: the text between
// two blank lines (LangChain and LlamaIndex join documents so), or the last line before the first blank line,
// where prompts like "Answer from this context:\nParis is .." have their first document. Only the paragraph
// itself matters, so the same one is cut in the same way wherever it comes. Short paragraphs are left in the
// text around them. The text after the last passage is the question; it is not blank. Pure functions;
// thread-safe.
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

/// The passages of a text, ascending; at most `max_passages`, the first ones. `known`: KnownTexts::Find of
/// this text.
std::vector<TextRange> FindPassages(std::string_view text, const std::vector<TextRange>& known,
                                    bool paragraphs, size_t max_passages);

/// Cuts the question, and the texts of the user's earlier turns that have no chunks, into chunks: the
/// passages, and the text before and between them. Together they are the same text. At most `max_chunks` in
/// all turns together, of which earlier turns get theirs first: each is cut as it was when it was the last.
/// `namespaces`: those whose known texts are looked for. Returns which of prompt->chunks are passages,
/// ascending.
/// REQUIRES: prompt->chunks is empty; how is not kNone
std::vector<int32_t> SplitPrompt(PromptSplit how, const KnownTexts& known,
                                 absl::Span<const std::string> namespaces, int32_t max_chunks,
                                 Prompt* prompt);

/// Marks the spans of chunks that are no passages as text: nothing is stored of them. `passages`: what
/// SplitPrompt has returned.
void MarkTextBetween(const std::vector<int32_t>& passages, PromptLayout* layout);

}  // namespace kvblend::prompt
