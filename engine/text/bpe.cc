#include "engine/text/bpe.h"

#include <algorithm>

namespace kvblend::text {

void BpeMerger::Propose(int32_t left, int32_t right) {
  const BpeMerges::Merge* merge = merges_.Find(symbols_[left].token, symbols_[right].token);
  if (merge == nullptr) return;
  heap_.push_back({merge->rank, left, merge->result});
  std::push_heap(heap_.begin(), heap_.end());
}

void BpeMerger::AppendTokens(std::string_view word, std::vector<TokenId>* output) {
  symbols_.clear();
  heap_.clear();
  for (const char byte : word) {
    const TokenId token = merges_.ByteToken(static_cast<uint8_t>(byte));
    if (token == kNoToken) continue;
    const int32_t index = static_cast<int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({token, index - 1, -1});
  }
  if (symbols_.empty()) return;
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols_.size()); ++i) Propose(i, i + 1);

  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end());
    heap_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.token == kNoToken || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    // Out of date unless the two still merge into the same token.
    const BpeMerges::Merge* merge = merges_.Find(left.token, right.token);
    if (merge == nullptr || merge->result != best.result) continue;

    left.token = best.result;
    right.token = kNoToken;
    left.next = right.next;
    if (left.next >= 0) symbols_[left.next].previous = best.left;
    if (left.previous >= 0) Propose(left.previous, best.left);
    if (left.next >= 0) Propose(best.left, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) output->push_back(symbols_[i].token);
}

}  // namespace kvblend::text
