#include "engine/text/scored_bpe.h"

#include "engine/text/utf8.h"

namespace kvblend::text {

void ScoredBpeMerger::AppendTokens(std::string_view word, std::vector<TokenId>* output) {
  word_ = word;
  symbols_.clear();
  unused_.clear();
  for (size_t begin = 0; begin < word.size();) {
    const size_t length = DecodeUtf8At(word, begin).length;
    const auto index = static_cast<int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({begin, length, index - 1, -1});
    begin += length;
  }
  for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i) Propose(i);
  while (!candidates_.empty()) {
    const Candidate best = candidates_.top();
    candidates_.pop();
    Symbol& left = symbols_[best.left];
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    // One of the two has merged with another neighbour since.
    if (left.length + right.length != best.length) continue;
    left.length = best.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols_[left.next].previous = best.left;
    if (left.previous >= 0) Propose(left.previous);
    Propose(best.left);
  }
  for (int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = symbols_[i].next) {
    AppendSymbol(word.substr(symbols_[i].begin, symbols_[i].length), output);
  }
}

void ScoredBpeMerger::Propose(int32_t left) {
  const Symbol& symbol = symbols_[left];
  if (symbol.next < 0) return;
  const size_t length = symbol.length + symbols_[symbol.next].length;
  const std::string_view joined = word_.substr(symbol.begin, length);
  const Pieces::Piece* piece = pieces_.Find(joined);
  if (piece == nullptr) return;
  candidates_.push({piece->score, left, length});
  if (piece->unused) unused_[joined] = symbol.length;
}

void ScoredBpeMerger::AppendSymbol(std::string_view symbol, std::vector<TokenId>* output) {
  // Parts of unused pieces may be unused again; a stack of what is still to come, for there can be many.
  std::vector<std::string_view> parts = {symbol};
  while (!parts.empty()) {
    const std::string_view part = parts.back();
    parts.pop_back();
    const auto found = unused_.find(part);
    const Pieces::Piece* piece = pieces_.Find(part);
    if (found != unused_.end()) {
      parts.push_back(part.substr(found->second));
      parts.push_back(part.substr(0, found->second));
    } else if (piece != nullptr && !piece->unused) {
      output->push_back(piece->token);
    } else {
      pieces_.AppendCharacter(part, output);
    }
  }
}

}  // namespace kvblend::text
