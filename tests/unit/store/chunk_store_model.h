// What the chunk store should hold, by the definitions in its headers: lists that are searched from end to
// end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "engine/store/chunk_store.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store {

struct ModelEntry {
  ChunkAddress address;
  int64_t bytes = 0;
  double cost = 0;
  int64_t hits = 0;
  int64_t handles = 0;
  bool pinned = false;
  bool proven = false;        // hit
  bool on_probation = false;  // of the last time it became idle, as the next two
  double priority = 0;
  int64_t idle_since = -1;  // counts; -1: not idle
  absl::Time created;
  absl::Time last_used;
};

class Model {
 public:
  /// `quota`: of each namespace.
  Model(int64_t budget, int64_t pin_limit, int64_t quota)
      : budget_(budget), pin_limit_(pin_limit), quota_(quota) {}

  /// One more time that somebody asked for a chunk, stored or not.
  void Ask(const ChunkKey& key) {
    ++frequencies_[key];
    if (++asked_ < std::max<int64_t>(1024, 16 * static_cast<int64_t>(resident_.size()))) return;
    asked_ = 0;
    for (auto& [asked, count] : frequencies_) count /= 2;
  }

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
    entry->proven = true;
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
    const std::string& owner = address.tenant_namespace;
    if (quota_ < budget_ && BytesOf(owner) - IdleBytesOf(owner) + bytes > quota_) return Reject();
    while (quota_ < budget_ && BytesOf(owner) + bytes > quota_) EvictOne(owner);
    while (Bytes() + bytes > budget_) EvictOne(std::nullopt);
    auto entry = std::make_shared<ModelEntry>();
    *entry = {.address = address,
              .bytes = bytes,
              .cost = cost,
              .handles = 1,
              .pinned = pinned,
              .created = now,
              .last_used = now};
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
  int64_t BytesOf(const std::string& owner) const {
    int64_t bytes = Sum([&](const ModelEntry& e) { return e.address.tenant_namespace == owner; });
    for (const auto& entry : erased_held_) {
      bytes += entry->address.tenant_namespace == owner ? entry->bytes : 0;
    }
    return bytes;
  }
  int64_t IdleBytesOf(const std::string& owner) const {
    return Sum([&](const ModelEntry& e) { return e.idle_since >= 0 && e.address.tenant_namespace == owner; });
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
      const auto asked = frequencies_.find(entry->address.key);
      const int64_t frequency =
          std::max<int64_t>(entry->proven ? 2 : 1, asked == frequencies_.end() ? 0 : asked->second);
      entry->on_probation = frequency == 1;
      entry->priority = (entry->on_probation ? probation_clock_ : clock_) +
                        static_cast<double>(frequency) * entry->cost / static_cast<double>(entry->bytes);
    }
  }

  bool Reject() {
    ++rejections_;
    return false;
  }

  /// The lowest idle entry that is, or is not, on probation; of one owner or of all.
  const ModelEntry* Lowest(const std::optional<std::string>& owner, bool on_probation) const {
    const ModelEntry* lowest = nullptr;
    for (const auto& [key, entry] : resident_) {
      if (entry->idle_since < 0 || entry->on_probation != on_probation) continue;
      if (owner.has_value() && entry->address.tenant_namespace != *owner) continue;
      if (lowest == nullptr ||
          std::pair(entry->priority, entry->idle_since) < std::pair(lowest->priority, lowest->idle_since)) {
        lowest = entry.get();
      }
    }
    return lowest;
  }

  void EvictOne(const std::optional<std::string>& owner) {
    const auto bytes = [&](bool on_probation) {
      return Sum([&](const ModelEntry& e) {
        return e.idle_since >= 0 && e.on_probation == on_probation &&
               (!owner.has_value() || e.address.tenant_namespace == *owner);
      });
    };
    const auto probation = static_cast<double>(bytes(true));
    const auto proven = static_cast<double>(bytes(false));
    const bool from_probation = probation > 0.1 * (probation + proven) || proven == 0;
    const ModelEntry* lowest = Lowest(owner, from_probation);
    // Others that stay may lie below what one owner gives up.
    if (lowest == Lowest(std::nullopt, from_probation)) {
      (from_probation ? probation_clock_ : clock_) = lowest->priority;
    }
    ++evictions_;
    resident_.erase(ChunkKey(lowest->address.key));
  }

  const int64_t budget_;
  const int64_t pin_limit_;
  const int64_t quota_;
  std::map<ChunkKey, int64_t> frequencies_;
  int64_t asked_ = 0;
  std::map<ChunkKey, std::shared_ptr<ModelEntry>> resident_;
  std::list<std::shared_ptr<ModelEntry>> erased_held_;
  double clock_ = 0;
  double probation_clock_ = 0;
  int64_t next_count_ = 0;
  int64_t evictions_ = 0;
  int64_t rejections_ = 0;
};

}  // namespace kvblend::store
