#include "engine/text/unigram/unigram.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// A text is segmented in parts of at most so many bytes, so that lengths fit and memory stays bounded; only texts that
// are longer than any prompt have more than one.
constexpr size_t kMaxSegmented = size_t{64} << 20;

// The end of the first part of `text`, which divides no character.
size_t EndOfPart(std::string_view text) {
  if (text.size() <= kMaxSegmented) return text.size();
  size_t end = kMaxSegmented;
  while ((static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

}  // namespace

void UnigramModel::Add(std::string_view text, TokenId token, double score) {
  entries_.push_back({text, token, score});
}

void UnigramModel::Finish(double unknown_score, Precision precision) {
  unknown_score_ = unknown_score;
  precision_ = precision;
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& entry : entries_) ++first_of_byte_[static_cast<uint8_t>(entry.text[0]) + 1];
  for (size_t byte = 0; byte < 256; ++byte) first_of_byte_[byte + 1] += first_of_byte_[byte];
}

template <typename Body>
void UnigramModel::ForEachPrefix(std::string_view text, const Body& body) const {
  // Entries that share the first `length` bytes of `text` are neighbours; the one that ends there comes first.
  const auto first = static_cast<uint8_t>(text[0]);
  auto begin = entries_.begin() + static_cast<ptrdiff_t>(first_of_byte_[first]);
  auto end = entries_.begin() + static_cast<ptrdiff_t>(first_of_byte_[first + 1]);
  for (size_t length = 1; begin != end; ++length) {
    if (begin->text.size() == length) {
      body(*begin);
      ++begin;
    }
    if (length == text.size()) return;
    const auto next = static_cast<uint8_t>(text[length]);
    const auto at = [length](const Entry& entry) { return static_cast<uint8_t>(entry.text[length]); };
    begin = std::partition_point(begin, end, [&](const Entry& entry) { return at(entry) < next; });
    end = std::partition_point(begin, end, [&](const Entry& entry) { return at(entry) == next; });
  }
}

template <typename Score>
void UnigramModel::AppendBest(std::string_view text, const Pieces& pieces,
                              std::vector<TokenId>* output) const {
  std::vector<Place<Score>> places(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const Score before = places[begin].score;
    // The first of those that are equal stays.
    const auto offer = [&](size_t length, Score score, TokenId token) {
      Place<Score>& place = places[begin + length];
      if (place.length != 0 && !(score > place.score)) return;
      place = {score, static_cast<int32_t>(length), token};
    };
    const size_t character = DecodeUtf8At(text, begin).length;
    bool is_piece = false;
    ForEachPrefix(text.substr(begin), [&](const Entry& entry) {
      offer(entry.text.size(), static_cast<Score>(entry.score) + before, entry.token);
      is_piece = is_piece || entry.text.size() == character;
    });
    if (!is_piece) offer(character, static_cast<Score>(unknown_score_) + before, kNoToken);
    begin += character;
  }
  // Backwards, then turned around.
  std::vector<size_t> begins;
  for (size_t end = text.size(); end > 0; end -= static_cast<size_t>(places[end].length)) {
    begins.push_back(end - static_cast<size_t>(places[end].length));
  }
  bool after_unknown = false;
  for (size_t i = begins.size(); i-- > 0;) {
    const size_t end = i == 0 ? text.size() : begins[i - 1];
    const TokenId token = places[end].token;
    if (token != kNoToken) {
      output->push_back(token);
      after_unknown = false;
      continue;
    }
    const size_t size = output->size();
    pieces.AppendCharacter(text.substr(begins[i], end - begins[i]), output);
    const bool unknown = output->size() == size + 1 && pieces.unknown() == output->back();
    if (unknown && after_unknown) output->pop_back();
    after_unknown = unknown;
  }
}

void UnigramModel::AppendTokens(std::string_view text, const Pieces& pieces,
                                std::vector<TokenId>* output) const {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, EndOfPart(text));
    if (precision_ == Precision::kSingle) {
      AppendBest<float>(part, pieces, output);
    } else {
      AppendBest<double>(part, pieces, output);
    }
    text.remove_prefix(part.size());
  }
}

}  // namespace kvblend::text
