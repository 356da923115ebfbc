// Which documents an answer was copied from, part by part.
//
// Answers of retrieval quote. Words of the answer that stand in the same order in a document are a citation of it when they are
// unlikely to be the same by chance: the weight of a run of words is the sum of ln(N / n) / ln(N) over its words, where n is how
// often the word stands in all documents together and N is how many words these have: 1 for a word that stands there once. A word that the question has too weighs nothing,
// as an answer repeats its question whatever the documents say.
//
// What is matched is text, not tokens: two documents that say the same are both sources. Found is what is quoted, up to the case of ASCII
// and punctuation; not what is said in other words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvblend::server::cohere {

struct Citation {
  int64_t begin_byte = 0;  // of the answer, which is UTF-8
  int64_t end_byte = 0;
  std::vector<int32_t> documents;  // ascending, at least one
};

/// A run of words weighs this much at least. docs/http-api.md tells how it was measured.
inline constexpr double kMinCitationWeight = 1.75;

/// Looks answers up in some documents. Immutable; thread-safe.
class CitationFinder {
 public:
  /// UTF-8, as the model sees them; the longest that are looked at together are 2^31 - 1 words.
  CitationFinder(const std::vector<std::string>& documents, std::string_view question);

  /// In the order of the answer, none overlapping. Time: the answer's words times how often the commonest of them stands in the
  /// documents, times the length of the runs.
  std::vector<Citation> Find(std::string_view answer, double min_weight = kMinCitationWeight) const;

 private:
  struct Place {
    int32_t document;
    int32_t word;  // into words_[document]
  };
  struct Run {
    size_t num_words = 0;
    std::vector<int32_t> documents;
  };

  double WeightOf(int32_t word_id) const;
  /// The longest run of the answer's words from `first` on that some document has, and the documents that have it.
  Run LongestRun(const std::vector<int32_t>& answer, size_t first) const;

  absl::flat_hash_map<std::string, int32_t> ids_;  // of words, in lower case
  std::vector<std::vector<int32_t>> words_;        // of each document
  std::vector<std::vector<Place>> places_;         // by id
  std::vector<bool> in_question_;                  // by id
  int64_t num_words_ = 0;                          // of all documents
};

}  // namespace kvblend::server::cohere
