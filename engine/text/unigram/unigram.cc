#include "engine/text/unigram/unigram.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace kvblend::text {
namespace {

// A text is segmented in parts of at most so many bytes, so that lengths fit and memory stays bounded; only
// texts that are longer than any prompt have more than one.
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
  entries_.Add({text, token, score});
}

void UnigramModel::Finish(double unknown_score, Precision precision) {
  unknown_score_ = unknown_score;
  precision_ = precision;
  entries_.Finish();
}

template <typename Score>
void UnigramModel::AppendBest(std::string_view text, const Pieces& pieces,
                              std::vector<TokenId>* output) const {
  std::vector<Place<Score>> places(text.size() + 1);
  for (size_t begin = 0; begin < text.size();) {
    const Score before = places[begin].score;
    // Of equal scores the first one stays.
    const auto offer = [&](size_t length, Score score, TokenId token) {
      Place<Score>& place = places[begin + length];
      if (place.length != 0 && !(score > place.score)) return;
      place = {score, static_cast<int32_t>(length), token};
    };
    const size_t character = DecodeUtf8At(text, begin).length;
    bool is_piece = false;
    entries_.ForEach(text.substr(begin), [&](const Entry& entry) {
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
