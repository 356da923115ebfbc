#include "engine/text/tokenizer.h"

#include <utility>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// Words longer than this repeat too rarely to be worth remembering.
constexpr size_t kMaxRememberedWord = 48;
// Bounds the memory of texts made of ever new words.
constexpr size_t kMaxRememberedWords = 1 << 16;

/// Encodes words into one output; a word seen before is copied from where it went first.
class WordEncoder {
 public:
  WordEncoder(const BpeMerges& merges, std::vector<TokenId>* output) : merger_(merges), output_(output) {}

  void Append(std::string_view word) {
    if (word.size() > kMaxRememberedWord) {
      merger_.AppendTokens(word, output_);
      return;
    }
    const auto entry = remembered_.find(word);
    if (entry == remembered_.end()) {
      const size_t begin = output_->size();
      merger_.AppendTokens(word, output_);
      if (remembered_.size() < kMaxRememberedWords) remembered_.try_emplace(word, begin, output_->size());
      return;
    }
    for (size_t i = entry->second.first; i < entry->second.second; ++i) {
      const TokenId token = (*output_)[i];  // a copy: push_back may move the elements
      output_->push_back(token);
    }
  }

 private:
  BpeMerger merger_;
  std::vector<TokenId>* output_;
  absl::flat_hash_map<std::string_view, std::pair<size_t, size_t>> remembered_;  // [begin, end) in *output_
};

}  // namespace

std::vector<TokenId> Tokenizer::Encode(std::string_view text) const {
  std::string replaced;
  if (FirstInvalidUtf8(text)) {
    AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/false, &replaced);
    text = replaced;
  }
  std::vector<TokenId> tokens;
  tokens.reserve(text.size() / 4 + 1);
  WordEncoder encoder(merges_, &tokens);
  // Llama 3's tokenizer has "ignore_merges": a word that is a token needs no merging.
  const bool whole_words_first = pre_tokenizer_ == PreTokenizer::kLlamaBpe;
  const auto encode_plain = [&](std::string_view plain) {
    WordScanner scanner(pre_tokenizer_, plain);
    for (std::string_view word = scanner.Next(); !word.empty(); word = scanner.Next()) {
      if (whole_words_first) {
        if (const auto found = words_.find(word); found != words_.end()) {
          tokens.push_back(found->second);
          continue;
        }
      }
      encoder.Append(word);
    }
  };

  size_t plain_begin = 0;
  if (!user_defined_by_byte_.empty()) {
    for (size_t position = 0; position < text.size();) {
      const UserDefined* match = UserDefinedAt(text, position);
      if (match == nullptr) {
        ++position;
        continue;
      }
      encode_plain(text.substr(plain_begin, position - plain_begin));
      tokens.push_back(match->token);
      position += match->bytes.size();
      plain_begin = position;
    }
  }
  encode_plain(text.substr(plain_begin));
  return tokens;
}

const Tokenizer::UserDefined* Tokenizer::UserDefinedAt(std::string_view text, size_t position) const {
  const std::string_view rest = text.substr(position);
  for (const UserDefined& candidate : user_defined_by_byte_[static_cast<uint8_t>(text[position])]) {
    if (rest.substr(0, candidate.bytes.size()) == candidate.bytes) return &candidate;
  }
  return nullptr;
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

std::string Tokenizer::Decode(std::span<const TokenId> tokens, bool skip_special) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    if (!skip_special || !IsSpecial(token)) bytes.append(TokenBytes(token));
  }
  if (!FirstInvalidUtf8(bytes)) return bytes;
  std::string text;
  AppendReplacingInvalidUtf8(bytes, /*keep_incomplete=*/false, &text);
  return text;
}

}  // namespace kvblend::text
