#include "engine/text/bpe.h"

#include <algorithm>
#include <cstddef>

namespace kvblend::text {

void BpeMerges::Reserve(size_t num_rules) {
  rules_.reserve(num_rules);
  ranks_.reserve(num_rules);
}

void BpeMerges::AddRule(const Rule& rule) {
  ranks_[PairKey(rule.left, rule.right)] = static_cast<int32_t>(rules_.size());
  rules_.push_back(rule);
}

void BpeMerger::AppendTokens(std::string_view word, std::vector<TokenId>* output) {
  symbols_.clear();
  for (const char byte : word) {
    const TokenId token = merges_.ByteToken(static_cast<uint8_t>(byte));
    if (token != kNoToken) AddSymbol(token);
  }
  MergeSymbols(output);
}

void BpeMerger::AppendMerged(std::span<const TokenId> symbols, std::vector<TokenId>* output) {
  symbols_.clear();
  for (const TokenId token : symbols) AddSymbol(token);
  MergeSymbols(output);
}

void BpeMerger::AddSymbol(TokenId token) {
  const auto index = static_cast<int32_t>(symbols_.size());
  if (index > 0) symbols_.back().next = index;
  symbols_.push_back({token, index - 1, -1});
}

void BpeMerger::MergeSymbols(std::vector<TokenId>* output) {
  if (symbols_.empty()) return;
  if (symbols_.size() < long_word_) {
    MergeByHeap();
  } else {
    MergeByBuckets();
  }
  for (int32_t i = 0; i >= 0; i = symbols_[i].next) output->push_back(symbols_[i].token);
}

// Rank of the pair that begins at `left`; -1 for none.
int32_t BpeMerger::RankAt(int32_t left) const {
  const int32_t right = symbols_[left].next;
  return right < 0 ? -1 : merges_.FindRank(symbols_[left].token, symbols_[right].token);
}

// False when the pair at `left` is no longer the one of `rank`: its symbols have merged with others since.
bool BpeMerger::Merge(int32_t left, int32_t rank) {
  const BpeMerges::Rule& rule = merges_.rule(rank);
  Symbol& symbol = symbols_[left];
  if (symbol.token != rule.left || symbol.next < 0) return false;
  Symbol& right = symbols_[symbol.next];
  if (right.token != rule.right) return false;
  symbol.token = rule.result;
  symbol.next = right.next;
  right.token = kNoToken;
  if (symbol.next >= 0) symbols_[symbol.next].previous = left;
  return true;
}

void BpeMerger::MergeByHeap() {
  const auto propose = [this](int32_t left) {
    if (const int32_t rank = RankAt(left); rank >= 0) heap_.push({rank, left});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i) propose(i);
  while (!heap_.empty()) {
    const Candidate best = heap_.top();
    heap_.pop();
    if (!Merge(best.left, best.rank)) continue;
    if (symbols_[best.left].previous >= 0) propose(symbols_[best.left].previous);
    propose(best.left);
  }
}

void BpeMerger::MergeByBuckets() {
  buckets_.clear();
  bucket_of_rank_.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i) PushToBucket(i);
  while (!queued_ranks_.empty()) {
    const int32_t rank = queued_ranks_.top();
    queued_ranks_.pop();
    DrainBucket(rank);
  }
}

void BpeMerger::PushToBucket(int32_t left) {
  const int32_t rank = RankAt(left);
  if (rank < 0) return;
  const auto [entry, is_new] = bucket_of_rank_.try_emplace(rank, buckets_.size());
  if (is_new) buckets_.emplace_back();
  Bucket& bucket = buckets_[entry->second];
  if (bucket.lefts.size() > bucket.next && bucket.lefts.back() > left) bucket.sorted = false;
  bucket.lefts.push_back(left);
  if (bucket.queued) return;
  bucket.queued = true;
  queued_ranks_.push(rank);
}

// Merges the candidates of `rank` until there are no more or one of a lower rank comes up. Merging never adds
// to the bucket itself: a new pair holds the result, which is neither side of the rule that makes it.
void BpeMerger::DrainBucket(int32_t rank) {
  const size_t index = bucket_of_rank_.at(rank);
  {
    Bucket& bucket = buckets_[index];
    bucket.queued = false;
    if (!bucket.sorted) {
      std::sort(bucket.lefts.begin() + static_cast<std::ptrdiff_t>(bucket.next), bucket.lefts.end());
      bucket.sorted = true;
    }
  }
  // PushToBucket may move the buckets, so each step looks its own up again.
  while (buckets_[index].next < buckets_[index].lefts.size()) {
    const int32_t left = buckets_[index].lefts[buckets_[index].next++];
    if (!Merge(left, rank)) continue;
    if (symbols_[left].previous >= 0) PushToBucket(symbols_[left].previous);
    PushToBucket(left);
    if (!queued_ranks_.empty() && queued_ranks_.top() < rank) {
      buckets_[index].queued = true;
      queued_ranks_.push(rank);
      return;
    }
  }
  buckets_[index] = Bucket();  // its memory goes back
}

}  // namespace kvblend::text
