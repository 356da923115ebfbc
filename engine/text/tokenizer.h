// Tokenizers of language models, with the ids that Hugging Face `tokenizers` and SentencePiece give for the
// same vocabulary: byte-level BPE (GPT-2, Llama 3, Qwen, ...) and SentencePiece's models, BPE (Llama 2,
// Mistral, Phi 3, Gemma) and unigram (many models for Japanese).
//
// Text and control never mix: Encode() gives no control token whatever the text says ("<|im_end|>" in a
// document is nine characters of text). Control tokens enter a prompt only by their ids, through
// FindSpecial().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/bpe.h"
#include "engine/text/normalization.h"
#include "engine/text/pieces.h"
#include "engine/text/prefix_search.h"
#include "engine/text/token_id.h"
#include "engine/text/unigram/unigram.h"
#include "engine/text/words/pre_tokenizer.h"

namespace kvblend::text {

enum class TokenizerModel {
  kByteLevelBpe,      // "gpt2": words cut by a pattern, merges of bytes by rank
  kSentencePieceBpe,  // "llama": merges of characters, by score, or by rank where there are merges
  kUnigram,           // "t5": the most probable pieces
};

/// A tokenizer as a model file describes it. Fields with the names of tokenizer.ggml.* keys are these.
struct TokenizerSpec {
  TokenizerModel model = TokenizerModel::kByteLevelBpe;
  std::string pre_tokenizer;  // of byte-level BPE: a name that FindPreTokenizer knows
  /// Byte-level: in GPT-2's spelling of bytes (byte_level.h); SentencePiece: with U+2581 for a space, and
  /// "<0x41>" for a byte. Control tokens literally.
  std::vector<std::string> tokens;
  std::vector<int32_t> token_types;  // one per token: a GgufTokenType; empty: all normal
  std::vector<std::string> merges;   // "left right", in order of rank
  std::vector<float> scores;         // of SentencePiece without merges: one per token
  /// For kUnigram, log-probabilities: one per token; and that of a character that is no token.
  std::vector<double> unigram_scores;
  double unigram_unknown_score = 0;
  UnigramModel::Precision unigram_precision = UnigramModel::Precision::kDouble;
  /// Whether a word that is a token needs no merges; unset: as usual for the pre-tokenizer.
  std::optional<bool> ignore_merges;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unknown;
  bool add_bos = false;  // prompts begin with `bos`
  /// Tokens that end a generation besides `eos`. Control tokens with the usual names of end-of-turn and
  /// end-of-text markers need not be listed.
  std::vector<TokenId> end_of_generation;

  /// Control tokens that take the whitespace before them, and behind them: of a prompt's own text too.
  /// User-defined tokens may do so as well; then that whitespace is in no token.
  std::vector<TokenId> strips_before;
  std::vector<TokenId> strips_behind;

  /// How the text between user-defined tokens is normalized; those tokens are then looked for first.
  Normalization normalization = Normalization::kNone;

  // The rest matters to SentencePiece's models only.
  bool add_space_prefix = false;  // a text is encoded with a space before it; decoding takes it away
  /// What else begins with such a space: what follows a user-defined token; not, what begins with a space
  /// anyway.
  bool space_prefix_every_piece = false;
  bool space_prefix_unless_space = false;
  /// Only the very beginning of a prompt gets the space, and not what follows a control token.
  bool space_prefix_first_only = false;
  bool remove_extra_whitespaces = false;  // spaces at both ends, and all but one in a row
  bool splits_at_spaces = false;  // of kUnigram: each space begins a word that is segmented on its own
  /// User-defined tokens are looked for in the text as it is, U+2581 being no space, instead of behind the
  /// space that is put in front.
  bool user_defined_first = false;
};

/// Values of tokenizer.ggml.token_type.
enum GgufTokenType : int32_t {
  kGgufNormal = 1,
  kGgufUnknown = 2,
  kGgufControl = 3,
  kGgufUserDefined = 4,
  kGgufUnused = 5,
  kGgufByte = 6,
};

/// What comes before a text that is encoded on its own.
enum class TextPosition {
  kFirst,   // nothing but BOS: the very beginning of a prompt
  kStart,   // a control token
  kWithin,  // other text: nothing is put in front (TokenizerSpec::add_space_prefix)
};

/// Immutable; safe from any thread.
class Tokenizer {
 public:
  /// kUnimplemented: a pre-tokenizer that is not known. kInvalidArgument: a vocabulary that contradicts
  /// itself (the message names key, index and value).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec);

  /// Ids of `text`, without BOS. Without a normalisation (a GGUF file names none) text stays as it is.
  /// Ill-formed UTF-8 counts as U+FFFD, one per maximal subpart (utf8.h). Control tokens never come out;
  /// tokens of type "user defined" do where their string occurs (leftmost, then longest), as in Hugging Face
  /// tokenizers. Bytes for which a byte-level vocabulary has no token are left out; what a SentencePiece
  /// vocabulary lacks becomes the unknown token.
  std::vector<TokenId> Encode(std::string_view text, TextPosition position = TextPosition::kFirst) const;

  /// As Encode, but nothing if there are more than `most` tokens, which is noticed without encoding much more
  /// text than so many take. (A text that is one word is encoded whole unless its bytes are too many for
  /// `most` tokens of the longest kind; where unknown characters become one token, nobody can tell.)
  std::optional<std::vector<TokenId>> EncodeAtMost(std::string_view text, TextPosition position,
                                                   size_t most) const;

  /// Id of the control or user-defined token with this string.
  std::optional<TokenId> FindSpecial(std::string_view name) const;

  /// Whether `token` is a control token: not text, never shown to users.
  bool IsSpecial(TokenId token) const;

  /// Whether the whitespace before the token, or behind it, goes: of a control token when a prompt is put
  /// together, of one that is user-defined in Encode().
  bool StripsBefore(TokenId token) const { return strips_before_.contains(token); }
  bool StripsBehind(TokenId token) const { return strips_behind_.contains(token); }

  /// Whether generation stops at `token`.
  bool IsEndOfGeneration(TokenId token) const { return end_of_generation_.contains(token); }

  /// The bytes that `token` stands for: a control token's own name, possibly only part of a UTF-8 character.
  /// Empty for ids outside the vocabulary. Lives as long as the tokenizer.
  std::string_view TokenBytes(TokenId token) const;

  /// What `token` adds behind other text, a space that it begins with included; otherwise as Decode.
  std::string TokenText(TokenId token) const;

  /// The text of `tokens`; always valid UTF-8 (ill-formed bytes become U+FFFD). Ids outside the vocabulary
  /// are left out, and control tokens too with `skip_special`. The space that encoding puts in front is taken
  /// away.
  std::string Decode(std::span<const TokenId> tokens, bool skip_special) const;

  int32_t vocab_size() const { return static_cast<int32_t>(types_.size()); }
  /// Whether the text of tokens loses the space that it begins with (TokenizerSpec::add_space_prefix).
  bool strips_leading_space() const { return space_prefix_.wanted; }
  std::optional<TokenId> bos() const { return bos_; }
  bool add_bos() const { return add_bos_; }

 private:
  class Encoder;

  struct UserDefined {
    std::string text;
    TokenId token;
  };
  struct SpacePrefix {
    bool wanted = false;
    bool every_piece = false;
    bool unless_space = false;
    bool first_only = false;
  };

  Tokenizer() = default;
  bool is_unigram() const { return model_ == TokenizerModel::kUnigram; }
  bool is_byte_level() const { return model_ == TokenizerModel::kByteLevelBpe; }
  absl::Status LoadTypes(const TokenizerSpec& spec);
  absl::Status CheckScores(const TokenizerSpec& spec) const;
  absl::Status LoadTokens(const TokenizerSpec& spec);
  absl::Status LoadPieces(const TokenizerSpec& spec, const std::vector<bool>& is_text);
  void LoadUnigram(const TokenizerSpec& spec, const std::vector<bool>& is_text);
  absl::Status LoadMerges(const TokenizerSpec& spec);
  absl::Status LoadMarkers(const TokenizerSpec& spec);
  /// Whether SentencePiece has a byte token for each byte that UTF-8 may have: then no character is unknown.
  bool HasByteTokens() const;
  /// The longest user-defined token that `text` begins with; null: none.
  const UserDefined* LongestUserDefined(std::string_view text) const;

  TokenizerModel model_ = TokenizerModel::kByteLevelBpe;
  PreTokenizer pre_tokenizer_ = PreTokenizer::kGpt2;
  bool ignore_merges_ = false;
  bool by_rank_ = true;  // else by score
  Normalization normalization_ = Normalization::kNone;
  SpacePrefix space_prefix_;
  bool remove_extra_whitespaces_ = false;
  bool user_defined_first_ = false;
  bool splits_at_spaces_ = false;
  bool has_byte_tokens_ = false;
  std::string bytes_;                                        // of all tokens, one after the other
  std::vector<size_t> offsets_;                              // into bytes_; vocab_size() + 1
  std::vector<int32_t> types_;                               // GgufTokenType
  Pieces pieces_;                                            // what text is made of
  absl::flat_hash_map<std::string_view, TokenId> specials_;  // control and user-defined tokens by name
  PrefixSearch<UserDefined> user_defined_;
  BpeMerges merges_;
  UnigramModel unigram_;
  absl::flat_hash_set<TokenId> end_of_generation_;
  absl::flat_hash_set<TokenId> strips_before_;
  absl::flat_hash_set<TokenId> strips_behind_;
  std::optional<TokenId> bos_;
  bool add_bos_ = false;
};

}  // namespace kvblend::text
