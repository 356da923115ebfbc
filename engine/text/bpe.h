// Byte-pair merging of one word (Sennrich et al., 2016): always the pair of lowest rank, leftmost first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// What merging needs to know of a vocabulary. Immutable once filled; safe from any thread.
class BpeMerges {
 public:
  struct Merge {
    int32_t rank;  // lower merges first
    TokenId result;
  };

  BpeMerges() { byte_tokens_.fill(kNoToken); }

  void SetByteToken(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }
  /// A pair given twice keeps its later rank.
  void SetMerge(TokenId left, TokenId right, Merge merge) { merges_[PairKey(left, right)] = merge; }
  void Reserve(size_t num_merges) { merges_.reserve(num_merges); }

  TokenId ByteToken(uint8_t byte) const { return byte_tokens_[byte]; }
  const Merge* Find(TokenId left, TokenId right) const {
    const auto found = merges_.find(PairKey(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

 private:
  static uint64_t PairKey(TokenId left, TokenId right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }

  std::array<TokenId, 256> byte_tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

/// Merges words, one after the other, with buffers of its own. n bytes cost O(n log n) however long the word
/// is: neighbours are a linked list, candidate pairs a heap. Not thread-safe.
class BpeMerger {
 public:
  /// `merges` must outlive the merger.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  /// Appends the tokens of `word` (bytes). A byte without a token of its own is left out, as Hugging Face
  /// tokenizers do for vocabularies without an unknown token.
  void AppendTokens(std::string_view word, std::vector<TokenId>* output);

 private:
  struct Symbol {
    TokenId token;     // kNoToken once merged into its left neighbour
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // symbol
    TokenId result;
    // std::push_heap keeps the largest first; the lowest rank, then the leftmost, is wanted first.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  void Propose(int32_t left, int32_t right);

  const BpeMerges& merges_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace kvblend::text
