// Guesses the next tokens of an answer from its prompt and the answer so far. RAG answers quote their chunks,
// so the tokens that followed the last few tokens somewhere before are likely to follow again (prompt lookup
// decoding, Saxena 2023). The model checks the guess, several tokens in one step; see DraftLength.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace kvblend::generate {

/// The tokens of one sequence, and the places of each pair of them. Not thread-safe.
class PromptLookup {
 public:
  static constexpr int32_t kMaxMatch = 16;  // tokens that are compared
  static constexpr int32_t kMaxPlaces = 8;  // how many places of a pair are looked at, the last ones
  static constexpr int32_t kMinMatch = 2;

  explicit PromptLookup(absl::Span<const int32_t> tokens);

  void Append(int32_t token);

  struct Guess {
    int32_t match = 0;                      // how many of the last tokens are the same there; 0: no guess
    absl::Span<const int32_t> tokens = {};  // what followed there; valid until the next Append
  };
  /// A guess of at most `max_tokens`, from the place with the longest match, the latest of equal ones.
  Guess Next(int32_t max_tokens) const;

 private:
  static int64_t PairKey(int32_t first, int32_t second) {
    return (static_cast<int64_t>(first) << 32) | static_cast<uint32_t>(second);
  }
  int32_t MatchAt(int32_t end) const;

  std::vector<int32_t> tokens_;
  absl::flat_hash_map<int64_t, int32_t>
      last_;  // pair -> where the last one ends: index of the token behind it
  std::vector<int32_t>
      before_;  // per token: where the pair that ends before it stood the last time; -1: nowhere
};

}  // namespace kvblend::generate
