#include "server/cohere/citations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/text/char_class.h"
#include "engine/text/utf8.h"

namespace kvblend::server::cohere {
namespace {

using text::CharClass;

struct Word {
  int64_t begin = 0, end = 0;  // bytes
  std::string text;            // ASCII in lower case, the rest as it is
};

constexpr int kListedEdges = 8;  // of one state; more are a table

constexpr text::CharClasses kOfWords = text::kLetters | CharClass::kMark | CharClass::kNumber;

// Scripts that are written without spaces: each character is a word of its own.
bool StandsAlone(uint32_t code_point, CharClass of) {
  return code_point >= 0x2E80 && of == CharClass::kCaseless;
}

std::vector<Word> WordsOf(std::string_view text) {
  std::vector<Word> words;
  bool goes_on = false;  // the last word
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Step step = text::DecodeUtf8At(text, at);
    const size_t end = at + step.length;
    const bool valid = step.kind == text::Utf8Step::Kind::kValid;
    const CharClass of = valid ? text::ClassOf(step.code_point) : CharClass::kOther;
    if (!text::IsIn(of, kOfWords)) {
      goes_on = false;
    } else {
      const bool alone = StandsAlone(step.code_point, of);
      if (!goes_on || alone) words.push_back({.begin = static_cast<int64_t>(at), .end = 0, .text = {}});
      Word& word = words.back();
      word.end = static_cast<int64_t>(end);
      word.text += absl::AsciiStrToLower({text.data() + at, step.length});
      goes_on = !alone;
    }
    at = end;
  }
  return words;
}

}  // namespace

CitationFinder::CitationFinder(const std::vector<std::string>& documents, std::string_view question) {
  NewState(0);
  for (const std::string& document : documents) {
    std::vector<int32_t>& words = documents_.emplace_back();
    for (Word& word : WordsOf(document)) {
      const auto [found, is_new] =
          ids_.try_emplace(std::move(word.text), static_cast<int32_t>(places_.size()));
      if (is_new) places_.emplace_back();
      places_[found->second].push_back({.document = static_cast<int32_t>(documents_.size()) - 1,
                                        .word = static_cast<int32_t>(words.size())});
      words.push_back(found->second);
    }
    num_words_ += static_cast<int64_t>(words.size());
    int32_t last = 0;
    for (auto word = words.rbegin(); word != words.rend(); ++word) last = Extend(last, *word);
  }
  in_question_.resize(places_.size());
  for (const Word& word : WordsOf(question)) {
    const auto found = ids_.find(word.text);
    if (found != ids_.end()) in_question_[found->second] = true;
  }
}

int32_t CitationFinder::NewState(int32_t length) {
  states_.emplace_back().length = length;
  return static_cast<int32_t>(states_.size()) - 1;
}

int32_t CitationFinder::Next(int32_t state, int32_t word) const {
  const State& from = states_[state];
  if (from.table >= 0) {
    const auto found = tables_[from.table].find(word);
    return found == tables_[from.table].end() ? -1 : found->second;
  }
  for (int32_t edge = from.edge; edge >= 0; edge = edges_[edge].next) {
    if (edges_[edge].word == word) return edges_[edge].target;
  }
  return -1;
}

void CitationFinder::SetNext(int32_t state, int32_t word, int32_t target) {
  State& from = states_[state];
  if (from.table >= 0) {
    tables_[from.table][word] = target;
    return;
  }
  int num_edges = 0;
  for (int32_t edge = from.edge; edge >= 0; edge = edges_[edge].next, ++num_edges) {
    if (edges_[edge].word != word) continue;
    edges_[edge].target = target;
    return;
  }
  if (num_edges < kListedEdges) {
    edges_.push_back({.word = word, .target = target, .next = from.edge});
    from.edge = static_cast<int32_t>(edges_.size()) - 1;
    return;
  }
  from.table = static_cast<int32_t>(tables_.size());
  auto& table = tables_.emplace_back();
  for (int32_t edge = from.edge; edge >= 0; edge = edges_[edge].next)
    table[edges_[edge].word] = edges_[edge].target;
  table[word] = target;
}

void CitationFinder::CopyEdges(int32_t from, int32_t to) {
  if (states_[from].table >= 0) {
    auto copy = tables_[states_[from].table];
    states_[to].table = static_cast<int32_t>(tables_.size());
    tables_.push_back(std::move(copy));
    return;
  }
  for (int32_t edge = states_[from].edge; edge >= 0; edge = edges_[edge].next) {
    const Edge copied = edges_[edge];
    edges_.push_back({.word = copied.word, .target = copied.target, .next = states_[to].edge});
    states_[to].edge = static_cast<int32_t>(edges_.size()) - 1;
  }
}

int32_t CitationFinder::Extend(int32_t last, int32_t word) {
  // An earlier document may have led here already.
  if (const int32_t target = Next(last, word); target >= 0) {
    return states_[target].length == states_[last].length + 1 ? target : Split(last, word, target);
  }
  const int32_t made = NewState(states_[last].length + 1);
  int32_t from = last;
  for (; from >= 0 && Next(from, word) < 0; from = states_[from].link) SetNext(from, word, made);
  if (from < 0) {
    states_[made].link = 0;
    return made;
  }
  const int32_t target = Next(from, word);
  const int32_t link =
      states_[target].length == states_[from].length + 1 ? target : Split(from, word, target);
  states_[made].link = link;
  return made;
}

int32_t CitationFinder::Split(int32_t from, int32_t word, int32_t target) {
  const int32_t made = NewState(states_[from].length + 1);
  states_[made].link = states_[target].link;
  CopyEdges(target, made);
  for (; from >= 0 && Next(from, word) == target; from = states_[from].link) SetNext(from, word, made);
  states_[target].link = made;
  return made;
}

std::vector<int32_t> CitationFinder::LongestRuns(const std::vector<int32_t>& answer) const {
  std::vector<int32_t> runs(answer.size());
  int32_t state = 0, length = 0;
  for (size_t i = answer.size(); i-- > 0;) {
    while (state != 0 && Next(state, answer[i]) < 0) {
      state = states_[state].link;
      length = states_[state].length;
    }
    const int32_t next = Next(state, answer[i]);
    state = std::max(next, 0);
    length = next < 0 ? 0 : length + 1;
    runs[i] = length;
  }
  return runs;
}

double CitationFinder::WeightOf(int32_t word) const {
  if (in_question_[word] || num_words_ < 2) return 0;
  return 1 - std::log(static_cast<double>(places_[word].size())) / std::log(static_cast<double>(num_words_));
}

std::vector<int32_t> CitationFinder::DocumentsWith(absl::Span<const int32_t> run) const {
  const auto rarest = std::min_element(
      run.begin(), run.end(), [this](int32_t a, int32_t b) { return places_[a].size() < places_[b].size(); });
  const auto before = static_cast<int32_t>(rarest - run.begin());
  std::vector<int32_t> found;
  for (const Place& place : places_[*rarest]) {
    if (place.word < before || (!found.empty() && found.back() == place.document)) continue;
    const absl::Span<const int32_t> words =
        absl::MakeConstSpan(documents_[place.document]).subspan(static_cast<size_t>(place.word - before));
    if (words.size() >= run.size() && std::equal(run.begin(), run.end(), words.begin()))
      found.push_back(place.document);
  }
  return found;
}

std::vector<Citation> CitationFinder::Find(std::string_view answer, double min_weight) const {
  const std::vector<Word> words = WordsOf(answer);
  std::vector<int32_t> ids;
  ids.reserve(words.size());
  std::vector<double> weights = {0};  // of the words before
  for (const Word& word : words) {
    const auto found = ids_.find(word.text);
    ids.push_back(found == ids_.end() ? -1 : found->second);
    weights.push_back(weights.back() + (ids.back() < 0 ? 0 : WeightOf(ids.back())));
  }
  const std::vector<int32_t> runs = LongestRuns(ids);
  std::vector<Citation> citations;
  for (size_t first = 0; first < ids.size();) {
    const size_t end = first + runs[first];
    if (runs[first] == 0 || weights[end] - weights[first] < min_weight) {
      ++first;  // a longer run may begin inside a short one
      continue;
    }
    Citation& citation = citations.emplace_back();
    citation.begin_byte = words[first].begin;
    citation.end_byte = words[end - 1].end;
    citation.documents = DocumentsWith(absl::MakeConstSpan(ids).subspan(first, runs[first]));
    first = end;
  }
  return citations;
}

const CitationFinder& CitedDocuments::finder() {
  absl::call_once(once_, [this] {
    finder_.emplace(documents_, question_);
    documents_ = {};
  });
  return *finder_;
}

}  // namespace kvblend::server::cohere
