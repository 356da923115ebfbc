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
  for (const std::string& document : documents) {
    std::vector<int32_t>& words = words_.emplace_back();
    for (Word& word : WordsOf(document)) {
      const auto [found, is_new] =
          ids_.try_emplace(std::move(word.text), static_cast<int32_t>(places_.size()));
      if (is_new) places_.emplace_back();
      places_[found->second].push_back(
          {.document = static_cast<int32_t>(words_.size()) - 1, .word = static_cast<int32_t>(words.size())});
      words.push_back(found->second);
    }
    num_words_ += static_cast<int64_t>(words.size());
  }
  in_question_.resize(places_.size());
  for (const Word& word : WordsOf(question)) {
    const auto found = ids_.find(word.text);
    if (found != ids_.end()) in_question_[found->second] = true;
  }
}

double CitationFinder::WeightOf(int32_t word_id) const {
  if (in_question_[word_id]) return 0;
  if (num_words_ < 2) return 0;
  return 1 -
         std::log(static_cast<double>(places_[word_id].size())) / std::log(static_cast<double>(num_words_));
}

CitationFinder::Run CitationFinder::LongestRun(const std::vector<int32_t>& answer, size_t first) const {
  Run run;
  for (const Place& place : places_[answer[first]]) {
    const std::vector<int32_t>& document = words_[place.document];
    const auto [in_answer, unused] = std::mismatch(answer.begin() + static_cast<int64_t>(first), answer.end(),
                                                   document.begin() + place.word, document.end());
    const auto length = static_cast<size_t>(in_answer - answer.begin()) - first;
    if (length < run.num_words) continue;
    if (length > run.num_words) run = {.num_words = length, .documents = {}};
    if (run.documents.empty() || run.documents.back() != place.document) {
      run.documents.push_back(place.document);  // places are in the order of the documents
    }
  }
  return run;
}

std::vector<Citation> CitationFinder::Find(std::string_view answer, double min_weight) const {
  const std::vector<Word> words = WordsOf(answer);
  constexpr int32_t kUnknown = -1;
  std::vector<int32_t> ids;
  ids.reserve(words.size());
  for (const Word& word : words) {
    const auto found = ids_.find(word.text);
    ids.push_back(found == ids_.end() ? kUnknown : found->second);
  }
  std::vector<Citation> citations;
  for (size_t first = 0; first < ids.size();) {
    if (ids[first] == kUnknown) {
      ++first;
      continue;
    }
    Run run = LongestRun(ids, first);
    const size_t end = first + run.num_words;
    double weight = 0;
    for (size_t i = first; i < end; ++i) weight += WeightOf(ids[i]);
    if (weight >= min_weight) {
      citations.push_back({.begin_byte = words[first].begin,
                           .end_byte = words[end - 1].end,
                           .documents = std::move(run.documents)});
      first = end;
    } else {
      ++first;  // a longer run may begin inside a short one
    }
  }
  return citations;
}

}  // namespace kvblend::server::cohere
