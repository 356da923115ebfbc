#include "engine/prompt/split/prompt_split.h"

#include <algorithm>
#include <utility>

#include "engine/prompt/text_boundary.h"

namespace kvblend::prompt {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

/// The places between paragraphs: from the end of a line to the beginning of the next one that is not blank.
std::vector<TextRange> BlankLines(std::string_view text) {
  std::vector<TextRange> breaks;
  for (size_t newline = text.find('\n'); newline != std::string_view::npos;) {
    const size_t next = std::min(text.find_first_not_of(kBlank, newline), text.size());
    const std::string_view between = text.substr(newline, next - newline);
    const size_t last = newline + between.rfind('\n');
    // A paragraph begins with its line, so that it keeps its indentation.
    if (last != newline) breaks.push_back({newline, last + 1});
    newline = text.find('\n', next);
  }
  return breaks;
}

/// Paragraphs of the text that overlap no range of `known`.
std::vector<TextRange> Paragraphs(std::string_view text, const std::vector<TextRange>& known) {
  std::vector<TextRange> found;
  size_t next_known = 0;
  size_t begin = 0;
  bool is_first = true;
  for (const TextRange& blank : BlankLines(text)) {
    TextRange paragraph{begin, blank.begin};
    if (std::exchange(is_first, false)) {
      const size_t line = text.substr(0, blank.begin).rfind('\n');
      paragraph.begin = line == std::string_view::npos ? 0 : line + 1;
      if (paragraph.begin == 0) paragraph.end = 0;  // all in one line, which may hold the question
    }
    begin = blank.end;
    while (next_known < known.size() && known[next_known].end <= paragraph.begin) ++next_known;
    const bool is_free = next_known == known.size() || known[next_known].begin >= paragraph.end;
    if (is_free && paragraph.end - paragraph.begin >= kMinPassageBytes) found.push_back(paragraph);
  }
  return found;  // what lies behind the last blank line is the question
}

/// Moves what lies before and in the passages of `text` into `chunks`. Which of them are passages is added to
/// `passages`.
void Cut(const std::vector<TextRange>& ranges, std::string* text, std::vector<std::string>* chunks,
         std::vector<int32_t>* passages) {
  size_t behind = 0;
  for (const TextRange& range : ranges) {
    if (range.begin > behind) chunks->push_back(text->substr(behind, range.begin - behind));
    passages->push_back(static_cast<int32_t>(chunks->size()));
    chunks->push_back(text->substr(range.begin, range.end - range.begin));
    behind = range.end;
  }
  text->erase(0, behind);
}

}  // namespace

std::vector<TextRange> FindPassages(std::string_view text, const std::vector<TextRange>& known,
                                    bool paragraphs, size_t max_passages) {
  std::vector<TextRange> passages = known;
  if (paragraphs) {
    const std::vector<TextRange> more = Paragraphs(text, known);
    passages.insert(passages.end(), more.begin(), more.end());
    std::sort(passages.begin(), passages.end(),
              [](const TextRange& a, const TextRange& b) { return a.begin < b.begin; });
  }
  if (passages.size() > max_passages) passages.resize(max_passages);
  // A question that is not blank is left.
  const size_t end = EndOfContent(text);
  while (!passages.empty() && passages.back().end >= end) passages.pop_back();
  return passages;
}

std::vector<int32_t> SplitPrompt(PromptSplit how, const KnownTexts& known,
                                 absl::Span<const std::string> namespaces, int32_t max_chunks,
                                 Prompt* prompt) {
  auto room = static_cast<size_t>(max_chunks);
  for (const Turn& turn : prompt->history) room -= std::min(room, turn.chunks.size());
  int64_t checks_left = KnownTexts::kMaxChecks;  // however many turns there are
  const auto cut = [&](std::string* text, std::vector<std::string>* chunks) {
    std::vector<int32_t> passages;
    // A passage may take two chunks: the text before it, and itself.
    Cut(FindPassages(*text, known.Find(namespaces, *text, &checks_left), how == PromptSplit::kPassages,
                     room / 2),
        text, chunks, &passages);
    room -= chunks->size();
    return passages;
  };
  // The oldest first: a later turn must not change how an earlier one was cut, whose KV is kept.
  for (Turn& turn : prompt->history) {
    if (turn.role == Role::kUser && turn.chunks.empty()) cut(&turn.text, &turn.chunks);
  }
  return cut(&prompt->question, &prompt->chunks);
}

void MarkTextBetween(const std::vector<int32_t>& passages, PromptLayout* layout) {
  for (Span& span : layout->spans) {
    span.is_text = span.kind == SpanKind::kChunk &&
                   !std::binary_search(passages.begin(), passages.end(), span.chunk_index);
  }
}

}  // namespace kvblend::prompt
