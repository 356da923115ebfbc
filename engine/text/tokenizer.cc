#include "engine/text/tokenizer.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "engine/text/char_class.h"
#include "engine/text/plain_form.h"
#include "engine/text/scored_bpe.h"
#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// Words longer than this repeat too rarely to be worth remembering.
constexpr size_t kMaxRememberedWord = 48;
// Bounds the memory of texts made of ever new words.
constexpr size_t kMaxRememberedWords = 1 << 16;

// End of the word at `begin`: words begin with spaces, where the vocabulary lets these divide.
size_t EndOfSpacedWord(std::string_view text, size_t begin, const Pieces& pieces) {
  size_t end = text.find_first_not_of(' ', begin);
  while (end != std::string_view::npos) {
    end = text.find(' ', end);
    if (end == std::string_view::npos || pieces.SpaceDividesAfter(text[end - 1])) break;
    end = text.find_first_not_of(' ', end);
  }
  return std::min(end, text.size());
}

}  // namespace

/// Encodes the plain stretches of one text into one output.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, size_t most, std::vector<TokenId>* output)
      : tokenizer_(tokenizer),
        most_(most),
        bpe_(tokenizer.merges_),
        scored_(tokenizer.pieces_),
        output_(output),
        joined_(tokenizer.is_unigram() ? std::nullopt : tokenizer.pieces_.unknown()) {}

  /// Whether there are more than `most` tokens; then nothing more is appended.
  bool is_full() {
    // Unknown tokens that are neighbours will be one.
    for (; joined_.has_value() && num_seen_ < output_->size(); ++num_seen_) {
      const bool joins =
          num_seen_ > 0 && (*output_)[num_seen_] == *joined_ && (*output_)[num_seen_ - 1] == *joined_;
      num_joined_ += joins ? 1 : 0;
    }
    return is_full_ || output_->size() - num_joined_ > most_;
  }

  /// Appends text in the vocabulary's spelling, without user-defined tokens; it must outlive the encoder.
  void Append(std::string_view plain) {
    if (tokenizer_.is_byte_level()) {
      WordScanner scanner(tokenizer_.pre_tokenizer_, plain);
      for (std::string_view word = scanner.Next(); !word.empty() && !is_full(); word = scanner.Next()) {
        AppendWord(word);
      }
      return;
    }
    if (tokenizer_.is_unigram()) return AppendSegmented(plain);
    for (size_t begin = 0; begin < plain.size() && !is_full();) {
      const size_t end = EndOfSpacedWord(plain, begin, tokenizer_.pieces_);
      AppendWord(plain.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  // A text's probability is that of all its words together, unless the vocabulary divides at spaces.
  void AppendSegmented(std::string_view plain) {
    if (!tokenizer_.splits_at_spaces_) return AppendNewWord(plain);
    for (size_t begin = 0; begin < plain.size() && !is_full();) {
      const size_t end = std::min(plain.find(' ', begin + 1), plain.size());
      AppendWord(plain.substr(begin, end - begin));
      begin = end;
    }
  }

  // A word seen before is copied from where it went first.
  void AppendWord(std::string_view word) {
    if (word.size() > kMaxRememberedWord) {
      AppendNewWord(word);
      return;
    }
    const auto entry = remembered_.find(word);
    if (entry == remembered_.end()) {
      const size_t begin = output_->size();
      AppendNewWord(word);
      if (remembered_.size() < kMaxRememberedWords) remembered_.try_emplace(word, begin, output_->size());
      return;
    }
    for (size_t i = entry->second.first; i < entry->second.second; ++i) {
      const TokenId token = (*output_)[i];  // a copy: push_back may move the elements
      output_->push_back(token);
    }
  }

  // Whether more than `most` tokens are needed however the word is divided: each stands for no more bytes
  // than the longest piece, of those bytes that can't be left out, or joined in one unknown token.
  bool HasTooManyBytes(std::string_view word) const {
    const size_t longest = std::max<size_t>(tokenizer_.pieces_.longest(), 1);
    if (word.size() / longest <= most_) return false;
    if (!tokenizer_.is_byte_level()) return tokenizer_.has_byte_tokens_;
    const auto known = std::count_if(word.begin(), word.end(), [this](char byte) {
      return tokenizer_.merges_.ByteToken(static_cast<uint8_t>(byte)) != kNoToken;
    });
    return static_cast<size_t>(known) / longest > most_;
  }

  void AppendNewWord(std::string_view word) {
    if (HasTooManyBytes(word)) {
      is_full_ = true;
      return;
    }
    if (tokenizer_.ignore_merges_) {
      if (const Pieces::Piece* piece = tokenizer_.pieces_.Find(word)) {
        output_->push_back(piece->token);
        return;
      }
    }
    if (tokenizer_.is_unigram()) {
      return tokenizer_.unigram_.AppendTokens(word, tokenizer_.pieces_, output_);
    }
    if (tokenizer_.is_byte_level()) return bpe_.AppendTokens(word, output_);
    if (!tokenizer_.by_rank_) return scored_.AppendTokens(word, output_);
    symbols_.clear();
    for (size_t begin = 0; begin < word.size();) {
      const std::string_view character = word.substr(begin, DecodeUtf8At(word, begin).length);
      if (const Pieces::Piece* piece = tokenizer_.pieces_.Find(character)) {
        symbols_.push_back(piece->token);
      } else {
        tokenizer_.pieces_.AppendCharacter(character, &symbols_);
      }
      begin += character.size();
    }
    bpe_.AppendMerged(symbols_, output_);
  }

  const Tokenizer& tokenizer_;
  const size_t most_;
  BpeMerger bpe_;
  ScoredBpeMerger scored_;
  std::vector<TokenId> symbols_;  // of one word
  std::vector<TokenId>* output_;
  const std::optional<TokenId> joined_;
  size_t num_seen_ = 0;    // tokens of the output
  size_t num_joined_ = 0;  // of these, joined with the one before
  bool is_full_ = false;
  absl::flat_hash_map<std::string_view, std::pair<size_t, size_t>> remembered_;  // [begin, end) in *output_
};

std::vector<TokenId> Tokenizer::Encode(std::string_view text, TextPosition position) const {
  return *EncodeAtMost(text, position, std::numeric_limits<size_t>::max());
}

std::optional<std::vector<TokenId>> Tokenizer::EncodeAtMost(std::string_view text, TextPosition position,
                                                            size_t most) const {
  std::string replaced;
  if (FirstInvalidUtf8(text)) {
    AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/false, &replaced);
    text = replaced;
  }
  std::vector<TokenId> tokens;
  tokens.reserve(std::min(text.size() / 4, most) + 1);
  Encoder encoder(*this, most, &tokens);
  std::deque<std::string> spelled;  // stays where it is: the encoder keeps views
  const auto spell = [&](std::string_view part, bool prefix) -> std::string_view {
    if (part.empty()) return part;
    std::string plain = WithPlainSpaces(Normalize(part, normalization_));
    if (remove_extra_whitespaces_) RemoveExtraSpaces(&plain);
    if (plain.empty()) return {};
    if (prefix && !(space_prefix_.unless_space && plain.front() == ' ')) plain.insert(0, 1, ' ');
    return spelled.emplace_back(std::move(plain));
  };
  const bool prefix =
      space_prefix_.wanted &&
      (position == TextPosition::kFirst || (position == TextPosition::kStart && !space_prefix_.first_only));
  const bool spell_parts = !is_byte_level() && user_defined_first_;
  if (!is_byte_level() && !spell_parts) text = spell(text, prefix);
  const auto encode_plain = [&](size_t begin, size_t end) {
    std::string_view part = text.substr(begin, end - begin);
    if (spell_parts) {
      part = spell(part, begin == 0 ? prefix : space_prefix_.every_piece);
    } else if (is_byte_level() && normalization_ != Normalization::kNone) {
      part = spelled.emplace_back(Normalize(part, normalization_));
    }
    encoder.Append(part);
  };

  size_t plain_begin = 0;
  if (!user_defined_.empty()) {
    for (size_t at = 0; at < text.size();) {
      const UserDefined* match = LongestUserDefined(text.substr(at));
      if (match == nullptr) {
        ++at;
        continue;
      }
      size_t plain_end = at;
      at += match->text.size();
      if (StripsBefore(match->token)) {
        plain_end = plain_begin + WithoutSpaceAtEnd(text.substr(plain_begin, plain_end - plain_begin)).size();
      }
      if (StripsBehind(match->token)) at = text.size() - WithoutSpaceInFront(text.substr(at)).size();
      encode_plain(plain_begin, plain_end);
      if (encoder.is_full()) return std::nullopt;
      tokens.push_back(match->token);
      plain_begin = at;
    }
  }
  encode_plain(plain_begin, text.size());
  if (encoder.is_full()) return std::nullopt;
  if (pieces_.unknown() && !is_unigram()) {
    // Unknown characters that are neighbours are one unknown token.
    const auto end = std::unique(tokens.begin(), tokens.end(),
                                 [this](TokenId a, TokenId b) { return a == b && a == *pieces_.unknown(); });
    tokens.erase(end, tokens.end());
  }
  return tokens;
}

const Tokenizer::UserDefined* Tokenizer::LongestUserDefined(std::string_view text) const {
  const UserDefined* longest = nullptr;
  user_defined_.ForEach(text, [&](const UserDefined& token) { longest = &token; });
  return longest;
}

std::optional<TokenId> Tokenizer::FindSpecial(std::string_view name) const {
  const auto found = specials_.find(name);
  if (found == specials_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::IsSpecial(TokenId token) const {
  return token >= 0 && token < vocab_size() &&
         (types_[token] == kGgufControl || types_[token] == kGgufUnknown);
}

std::string_view Tokenizer::TokenBytes(TokenId token) const {
  if (token < 0 || token >= vocab_size()) return {};
  return std::string_view(bytes_).substr(offsets_[token], offsets_[token + 1] - offsets_[token]);
}

std::string Tokenizer::TokenText(TokenId token) const {
  std::string text;
  AppendReplacingInvalidUtf8(TokenBytes(token), /*keep_incomplete=*/false, &text);
  return text;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, bool skip_special) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    if (!skip_special || !IsSpecial(token)) bytes.append(TokenBytes(token));
  }
  if (space_prefix_.wanted && bytes.starts_with(' ')) bytes.erase(0, 1);
  if (!FirstInvalidUtf8(bytes)) return bytes;
  std::string text;
  AppendReplacingInvalidUtf8(bytes, /*keep_incomplete=*/false, &text);
  return text;
}

}  // namespace kvblend::text
