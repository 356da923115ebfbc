#include "engine/generate/prompt_lookup.h"

#include <algorithm>

namespace kvblend::generate {

PromptLookup::PromptLookup(absl::Span<const int32_t> tokens) {
  tokens_.reserve(tokens.size());
  before_.reserve(tokens.size());
  for (const int32_t token : tokens) Append(token);
}

void PromptLookup::Append(int32_t token) {
  tokens_.push_back(token);
  const auto end = static_cast<int32_t>(tokens_.size());
  // before_[i] chains the places behind equal pairs; the last pair itself waits in last_ until something
  // follows.
  before_.push_back(-1);
  if (end < kMinMatch) return;
  const auto [entry, is_new] = last_.try_emplace(PairKey(tokens_[end - 2], tokens_[end - 1]), end);
  if (!is_new) {
    before_[end - 1] = entry->second;
    entry->second = end;
  }
}

int32_t PromptLookup::MatchAt(int32_t end) const {
  const auto size = static_cast<int32_t>(tokens_.size());
  int32_t match = 0;
  while (match < kMaxMatch && match < end && tokens_[end - 1 - match] == tokens_[size - 1 - match]) ++match;
  return match;
}

PromptLookup::Guess PromptLookup::Next(int32_t max_tokens) const {
  const auto size = static_cast<int32_t>(tokens_.size());
  if (size < kMinMatch || max_tokens < 1) return {};
  Guess best;
  int32_t place = before_[size - 1];
  for (int32_t i = 0; i < kMaxPlaces && place >= 0; ++i, place = before_[place - 1]) {
    const int32_t match = MatchAt(place);
    if (match <= best.match) continue;
    best = {match, absl::MakeConstSpan(tokens_).subspan(place, max_tokens)};
  }
  return best;
}

}  // namespace kvblend::generate
