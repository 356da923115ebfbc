// Byte-pair merging as SentencePiece does it (Kudo and Richardson, 2018): two neighbours merge when the
// string they make together is a piece of the vocabulary, the piece of highest score first, leftmost first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/pieces.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// Merges words, one after the other, with buffers of its own. n bytes cost O(n log n). Not thread-safe.
class ScoredBpeMerger {
 public:
  /// `pieces` must outlive the merger.
  explicit ScoredBpeMerger(const Pieces& pieces) : pieces_(pieces) {}

  /// Appends the tokens of `word`, valid UTF-8. Characters that are no piece become bytes or "unknown"
  /// (Pieces::AppendCharacter). Pieces marked as unused take part in merging, and are then taken apart again.
  void AppendTokens(std::string_view word, std::vector<TokenId>* output);

 private:
  struct Symbol {
    size_t begin;
    size_t length;     // 0 once merged into its left neighbour
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
  };
  struct Candidate {
    float score;
    int32_t left;  // symbol
    size_t length;
    // Standard heaps keep the largest on top: the highest score, then the leftmost.
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  void Propose(int32_t left);
  void AppendSymbol(std::string_view symbol, std::vector<TokenId>* output);

  const Pieces& pieces_;
  std::string_view word_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> candidates_;
  absl::flat_hash_map<std::string_view, size_t> unused_;  // such a piece -> length of its left part
};

}  // namespace kvblend::text
