// Segmentation by a unigram language model (Kudo, "Subword Regularization", ACL 2018, section 3.2): of all
// ways to write a text as pieces, the one whose log-probabilities have the largest sum, by Viterbi's
// algorithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/text/pieces.h"
#include "engine/text/prefix_search.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// Immutable once finished; safe from any thread.
class UnigramModel {
 public:
  /// In what sums are carried, which decides between segmentations of nearly equal probability: SentencePiece
  /// has single precision, Hugging Face tokenizers have double.
  enum class Precision : uint8_t { kSingle, kDouble };

  /// `text` must outlive the model, and no other piece may have it.
  void Add(std::string_view text, TokenId token, double score);
  /// Must be called once, after the last Add. `unknown_score`: the score of a character that is not a piece.
  void Finish(double unknown_score, Precision precision);

  /// Appends the tokens of `text`, valid UTF-8. Characters that are no piece become what `pieces` have for
  /// them (Pieces::AppendCharacter); where that is the unknown token, one stands for neighbouring characters
  /// together. n bytes take 16 n bytes of memory, and time n times the lengths of the pieces that begin at
  /// one place.
  void AppendTokens(std::string_view text, const Pieces& pieces, std::vector<TokenId>* output) const;

 private:
  struct Entry {
    std::string_view text;
    TokenId token;
    double score;
  };
  /// The best way to write what stands before a place, as far as the piece that ends there.
  template <typename Score>
  struct Place {
    Score score = 0;
    int32_t length = 0;        // of that piece; 0: nothing ends here
    TokenId token = kNoToken;  // kNoToken: a character that is no piece
  };

  template <typename Score>
  void AppendBest(std::string_view text, const Pieces& pieces, std::vector<TokenId>* output) const;

  PrefixSearch<Entry> entries_;
  double unknown_score_ = 0;
  Precision precision_ = Precision::kDouble;
};

}  // namespace kvblend::text
