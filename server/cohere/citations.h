// Which documents an answer was copied from, part by part.
//
// Answers of retrieval quote. Words of the answer that stand in the same order in a document are a citation
// of it when they are unlikely to be the same by chance: the weight of a run of words is the sum of ln(N / n)
// / ln(N) over its words, where n is how often the word stands in all documents together and N is how many
// words these have: 1 for a word that stands there once. A word that the question has too weighs nothing, as
// an answer repeats its question whatever the documents say.
//
// What is matched is text, not tokens: two documents that say the same are both sources. Found is what is
// quoted, up to the case of ASCII and punctuation; not what is said in other words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

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

  /// In the order of the answer, none overlapping. The time is that of going through the answer once, and for
  /// each citation to the places where the rarest of its words stands in the documents.
  std::vector<Citation> Find(std::string_view answer, double min_weight = kMinCitationWeight) const;

 private:
  // A suffix automaton (Blumer et al., 1985) of the documents read backwards: each state stands for runs of
  // words that follow upon the same words everywhere.
  // Nearly all states lead on by one word: the edges of one are a list, and only where there are many of them
  // a table.
  struct State {
    int32_t length = 0;  // of the longest of its runs
    int32_t link = -1;   // to the state of the longest shorter runs
    int32_t edge = -1;   // the first of its edges, in edges_
    int32_t table = -1;  // of all its edges, in tables_; -1: they are a list
  };
  struct Edge {
    int32_t word = 0;
    int32_t target = 0;
    int32_t next = -1;  // in the list
  };

  struct Place {
    int32_t document = 0;
    int32_t word = 0;
  };

  int32_t NewState(int32_t length);
  int32_t Next(int32_t state, int32_t word) const;
  void SetNext(int32_t state, int32_t word, int32_t target);
  /// `to` has no edges yet.
  void CopyEdges(int32_t from, int32_t to);
  /// The state behind `last` and `word`, made if need be.
  int32_t Extend(int32_t last, int32_t word);
  /// Parts the shorter runs of `target`, where `word` leads from `from`, from the longer ones.
  int32_t Split(int32_t from, int32_t word, int32_t target);
  /// For each word of the answer how many from it on stand together in some document.
  std::vector<int32_t> LongestRuns(const std::vector<int32_t>& answer) const;
  double WeightOf(int32_t word) const;
  /// Which documents have these words behind one another, ascending.
  std::vector<int32_t> DocumentsWith(absl::Span<const int32_t> run) const;

  absl::flat_hash_map<std::string, int32_t> ids_;  // of words, in lower case
  std::vector<std::vector<int32_t>> documents_;    // as words
  std::vector<std::vector<Place>> places_;  // by word: where it stands in the documents, in their order
  std::vector<bool> in_question_;           // by word
  int64_t num_words_ = 0;                   // of all documents
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<absl::flat_hash_map<int32_t, int32_t>> tables_;  // state by word
};

/// The documents of a request, for which a finder is made when it is first asked for. Thread-safe.
class CitedDocuments {
 public:
  CitedDocuments(std::vector<std::string> documents, std::string question)
      : documents_(std::move(documents)), question_(std::move(question)) {}

  /// The first call takes time in proportion to the documents, tens of milliseconds for 100,000 words; who
  /// calls meanwhile waits for it.
  const CitationFinder& finder();

 private:
  absl::once_flag once_;
  std::vector<std::string> documents_;  // until there is a finder
  std::string question_;
  std::optional<CitationFinder> finder_;
};

}  // namespace kvblend::server::cohere
