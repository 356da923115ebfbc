// What the chunk store should hold, by the definitions in its headers: lists that are searched from end to
// end.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "engine/store/chunk_address.h"
#include "engine/store/chunk_store.h"

namespace kvblend::store {

struct ModelEntry {
  ChunkAddress address;
  int64_t bytes = 0;
  double cost = 0;
  int64_t hits = 0;
  int64_t handles = 0;
  bool pinned = false;
  double priority = 0;      // of the last time it became idle
  int64_t idle_since = -1;  // counts; -1: not idle
  absl::Time created;
  absl::Time last_used;
};

class Model {
 public:
  Model(int64_t budget, int64_t pin_limit) : budget_(budget), pin_limit_(pin_limit) {}

  ModelEntry* Find(const ChunkKey& key) {
    const auto found = resident_.find(key);
    return found == resident_.end() ? nullptr : found->second.get();
  }

  ModelEntry* FindAnyAnchor(const ContentKey& content_key) {
    ModelEntry* best = nullptr;
    const auto rank = [](const ModelEntry& e) {
      return std::pair(e.address.anchor_hash == HashTokens({}), e.address.key);
    };
    for (auto& [key, entry] : resident_) {
      if (entry->address.content_key != content_key) continue;
      if (best == nullptr || rank(*entry) < rank(*best)) best = entry.get();
    }
    return best;
  }

  void Hit(ModelEntry* entry, absl::Time now) {
    ++entry->hits;
    entry->last_used = now;
    ++entry->handles;
    Settle(entry);
  }

  /// Whether it fits; evicts and inserts, with one handle, when it does.
  bool Insert(const ChunkAddress& address, double cost, bool pinned, absl::Time now) {
    if (ModelEntry* entry = Find(address.key); entry != nullptr) {
      if (pinned && !entry->pinned) {
        if (PinnedBytes() + entry->bytes > pin_limit_) return Reject();
        entry->pinned = true;
      }
      ++entry->handles;
      Settle(entry);
      return true;
    }
    const int64_t bytes =
        *ChunkKv::SizeBytes(address.format, address.num_tokens) + ChunkStore::kEntryOverheadBytes;
    if (pinned && PinnedBytes() + bytes > pin_limit_) return Reject();
    if (Bytes() - IdleBytes() + bytes > budget_) return Reject();
    while (Bytes() + bytes > budget_) EvictOne();
    auto entry = std::make_shared<ModelEntry>();
    *entry = {address, bytes, cost, 0, 1, pinned, 0, -1, now, now};
    resident_[address.key] = entry;
    return true;
  }

  bool Pin(ModelEntry* entry) {
    if (!entry->pinned && PinnedBytes() + entry->bytes > pin_limit_) return false;
    entry->pinned = true;
    Settle(entry);
    return true;
  }

  void Unpin(ModelEntry* entry) {
    entry->pinned = false;
    Settle(entry);
  }

  void Erase(const ChunkKey& key) {
    auto entry = resident_.at(key);
    resident_.erase(key);
    if (entry->handles > 0) erased_held_.push_back(entry);
  }

  void Release(ModelEntry* entry) {
    --entry->handles;
    for (const auto& [key, resident] : resident_) {
      if (resident.get() == entry) return Settle(entry);
    }
    if (entry->handles == 0) {
      erased_held_.remove_if([&](const auto& e) { return e.get() == entry; });
    }
  }

  int64_t Bytes() const { return ResidentBytes() + ErasedHeldBytes(); }
  int64_t ResidentBytes() const {
    return Sum([](const ModelEntry&) { return true; });
  }
  int64_t IdleBytes() const {
    return Sum([](const ModelEntry& e) { return e.idle_since >= 0; });
  }
  int64_t PinnedBytes() const {
    return Sum([](const ModelEntry& e) { return e.pinned; });
  }
  int64_t ErasedHeldBytes() const {
    int64_t bytes = 0;
    for (const auto& entry : erased_held_) bytes += entry->bytes;
    return bytes;
  }
  int64_t evictions() const { return evictions_; }
  int64_t rejections() const { return rejections_; }
  const std::map<ChunkKey, std::shared_ptr<ModelEntry>>& resident() const { return resident_; }

 private:
  template <typename Predicate>
  int64_t Sum(Predicate counts) const {
    int64_t bytes = 0;
    for (const auto& [key, entry] : resident_) bytes += counts(*entry) ? entry->bytes : 0;
    return bytes;
  }

  void Settle(ModelEntry* entry) {
    const bool idle = entry->handles == 0 && !entry->pinned;
    if (!idle) {
      entry->idle_since = -1;
    } else if (entry->idle_since < 0) {
      entry->idle_since = next_count_++;
      entry->priority =
          clock_ + static_cast<double>(1 + entry->hits) * entry->cost / static_cast<double>(entry->bytes);
    }
  }

  bool Reject() {
    ++rejections_;
    return false;
  }

  void EvictOne() {
    const ModelEntry* lowest = nullptr;
    for (const auto& [key, entry] : resident_) {
      if (entry->idle_since < 0) continue;
      if (lowest == nullptr ||
          std::pair(entry->priority, entry->idle_since) < std::pair(lowest->priority, lowest->idle_since)) {
        lowest = entry.get();
      }
    }
    clock_ = lowest->priority;
    ++evictions_;
    resident_.erase(ChunkKey(lowest->address.key));
  }

  const int64_t budget_;
  const int64_t pin_limit_;
  std::map<ChunkKey, std::shared_ptr<ModelEntry>> resident_;
  std::list<std::shared_ptr<ModelEntry>> erased_held_;
  double clock_ = 0;
  int64_t next_count_ = 0;
  int64_t evictions_ = 0;
  int64_t rejections_ = 0;
};

}  // namespace kvblend::store
