// Byte-pair merging of one word (Sennrich et al., 2016): always the pair of lowest rank, leftmost first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// What merging needs to know of a vocabulary. Immutable once filled; safe from any thread.
class BpeMerges {
 public:
  /// One pair and the token it becomes. Its index among the rules is its rank: lower merges first.
  struct Rule {
    TokenId left;
    TokenId right;
    TokenId result;
  };

  BpeMerges() { byte_tokens_.fill(kNoToken); }

  void SetByteToken(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }
  void Reserve(size_t num_rules);
  /// Adds the next rule. A pair given twice has the rank of its last rule.
  void AddRule(const Rule& rule);

  TokenId ByteToken(uint8_t byte) const { return byte_tokens_[byte]; }
  const Rule& rule(int32_t rank) const { return rules_[rank]; }
  /// -1 when the two do not merge.
  int32_t FindRank(TokenId left, TokenId right) const {
    const auto found = ranks_.find(PairKey(left, right));
    return found == ranks_.end() ? -1 : found->second;
  }

 private:
  static uint64_t PairKey(TokenId left, TokenId right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }

  std::array<TokenId, 256> byte_tokens_;
  std::vector<Rule> rules_;                       // by rank
  absl::flat_hash_map<uint64_t, int32_t> ranks_;  // by pair
};

/// Merges words, one after the other, with buffers of its own. Not thread-safe.
///
/// n bytes cost O(n log n) however long the word is: neighbours are a linked list, candidate pairs a queue by
/// (rank, position). For short words the queue is a heap. Long words, where a heap of all pairs would miss
/// the cache at every step, get one list of positions per rank, walked from left to right: on one word of 4
/// MiB of random letters several times faster.
class BpeMerger {
 public:
  static constexpr size_t kLongWord = 2048;  // bytes

  /// `merges` must outlive the merger.
  explicit BpeMerger(const BpeMerges& merges, size_t long_word = kLongWord)
      : merges_(merges), long_word_(long_word) {}

  /// Appends the tokens of `word` (bytes). A byte without a token of its own is left out, as Hugging Face
  /// tokenizers do for vocabularies without an unknown token.
  void AppendTokens(std::string_view word, std::vector<TokenId>* output);
  /// Appends what becomes of `symbols`, tokens that no merge has joined yet.
  void AppendMerged(std::span<const TokenId> symbols, std::vector<TokenId>* output);

 private:
  struct Symbol {
    TokenId token;     // kNoToken once merged into its left neighbour
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // symbol
    // Standard heaps keep the largest on top; the lowest rank, then the leftmost, is wanted there.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  /// The candidates of one rank.
  struct Bucket {
    std::vector<int32_t> lefts;
    size_t next = 0;      // those before are done
    bool sorted = true;   // from `next` on
    bool queued = false;  // in queued_ranks_
  };

  int32_t RankAt(int32_t left) const;
  bool Merge(int32_t left, int32_t rank);
  void AddSymbol(TokenId token);
  void MergeSymbols(std::vector<TokenId>* output);
  void MergeByHeap();
  void MergeByBuckets();
  void PushToBucket(int32_t left);
  void DrainBucket(int32_t rank);

  const BpeMerges& merges_;
  size_t long_word_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> heap_;
  std::vector<Bucket> buckets_;
  absl::flat_hash_map<int32_t, size_t> bucket_of_rank_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> queued_ranks_;
};

}  // namespace kvblend::text
