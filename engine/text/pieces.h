// The pieces of a SentencePiece vocabulary, by their text.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// Immutable once filled; safe from any thread. Texts are in plain form: a space where the vocabulary has
/// U+2581.
class Pieces {
 public:
  struct Piece {
    TokenId token;
    float score;
    bool unused;  // may be a step of merging, but no result
  };

  Pieces() { byte_tokens_.fill(kNoToken); }

  /// `text` must outlive the pieces. False when there is a piece of this text already; it stays.
  bool Add(std::string_view text, const Piece& piece);
  void SetByteToken(uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }
  TokenId ByteToken(uint8_t byte) const { return byte_tokens_[byte]; }
  void SetUnknown(TokenId token) { unknown_ = token; }

  /// nullptr when `text` is no piece.
  const Piece* Find(std::string_view text) const {
    const auto found = pieces_.find(text);
    return found == pieces_.end() ? nullptr : &found->second;
  }
  /// The length of the longest piece, in bytes.
  size_t longest() const { return longest_; }
  std::optional<TokenId> unknown() const { return unknown_; }
  /// Whether no piece has a space behind another character that ends in `byte`: then no merge joins what such
  /// a space divides. Gemma 3 has one that does, ">\u2581</".
  bool SpaceDividesAfter(char byte) const { return !before_space_[static_cast<uint8_t>(byte)]; }

  /// What stands for a character that is no piece: the tokens of its bytes; where one of these is missing,
  /// the unknown token; nothing where that is missing as well.
  void AppendCharacter(std::string_view character, std::vector<TokenId>* output) const;

 private:
  std::array<TokenId, 256> byte_tokens_;
  absl::flat_hash_map<std::string_view, Piece> pieces_;
  std::optional<TokenId> unknown_;
  size_t longest_ = 0;
  std::bitset<256> before_space_;  // last bytes of characters before a space inside of pieces
};

}  // namespace kvblend::text
