// Byte-level BPE tokenizer, with the ids that Hugging Face `tokenizers` gives for the same vocabulary.
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
#include "engine/text/pre_tokenizer.h"
#include "engine/text/token_id.h"

namespace kvblend::text {

/// A tokenizer as a GGUF file describes it. The fields carry the names of its tokenizer.ggml.* keys.
struct TokenizerSpec {
  std::string pre_tokenizer;         // "gpt-2", "llama-bpe", "qwen2" or "smollm"
  std::vector<std::string> tokens;   // in GPT-2's spelling of bytes (byte_level.h); control tokens literally
  std::vector<int32_t> token_types;  // one per token: a GgufTokenType; empty: all normal
  std::vector<std::string> merges;   // "left right", in order of rank
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  bool add_bos = false;  // prompts begin with `bos`
  /// Tokens that end a generation besides `eos`. Control tokens with the usual names of end-of-turn and
  /// end-of-text markers need not be listed.
  std::vector<TokenId> end_of_generation;
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

/// Immutable; safe from any thread.
class Tokenizer {
 public:
  /// kUnimplemented: a pre-tokenizer that is not known. kInvalidArgument: a vocabulary that contradicts
  /// itself (the message names key, index and value).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec);

  /// Ids of `text`, without BOS. The text is not normalised (a GGUF file names no normalisation). Ill-formed
  /// UTF-8 counts as U+FFFD, one per maximal subpart (utf8.h). Control tokens never come out; tokens of type
  /// "user defined" do where their string occurs (leftmost, then longest), as in Hugging Face tokenizers.
  /// Bytes for which the vocabulary has no token are left out.
  std::vector<TokenId> Encode(std::string_view text) const;

  /// Id of the control or user-defined token with this string.
  std::optional<TokenId> FindSpecial(std::string_view name) const;

  /// Whether `token` is a control token: not text, never shown to users.
  bool IsSpecial(TokenId token) const;

  /// Whether generation stops at `token`.
  bool IsEndOfGeneration(TokenId token) const { return end_of_generation_.contains(token); }

  /// The bytes that `token` stands for: a control token's own name, possibly only part of a UTF-8 character.
  /// Empty for ids outside the vocabulary. Lives as long as the tokenizer.
  std::string_view TokenBytes(TokenId token) const;

  /// The text of `tokens`; always valid UTF-8 (ill-formed bytes become U+FFFD). Ids outside the vocabulary
  /// are left out, and control tokens too with `skip_special`.
  std::string Decode(std::span<const TokenId> tokens, bool skip_special) const;

  int32_t vocab_size() const { return static_cast<int32_t>(types_.size()); }
  std::optional<TokenId> bos() const { return bos_; }
  bool add_bos() const { return add_bos_; }

 private:
  struct UserDefined {
    std::string_view bytes;
    TokenId token;
  };

  Tokenizer() = default;
  absl::Status LoadTokens(const TokenizerSpec& spec);
  absl::Status LoadMerges(const TokenizerSpec& spec);
  absl::Status LoadMarkers(const TokenizerSpec& spec);
  const UserDefined* UserDefinedAt(std::string_view text, size_t position) const;

  PreTokenizer pre_tokenizer_ = PreTokenizer::kGpt2;
  std::string bytes_;                                           // of all tokens, one after the other
  std::vector<size_t> offsets_;                                 // into bytes_; vocab_size() + 1
  std::vector<int32_t> types_;                                  // GgufTokenType
  absl::flat_hash_map<std::string_view, TokenId> words_;        // normal tokens by their bytes
  absl::flat_hash_map<std::string_view, TokenId> specials_;     // control and user-defined tokens by name
  std::vector<std::vector<UserDefined>> user_defined_by_byte_;  // by first byte, longest first; or empty
  BpeMerges merges_;
  absl::flat_hash_set<TokenId> end_of_generation_;
  std::optional<TokenId> bos_;
  bool add_bos_ = false;
};

}  // namespace kvblend::text
