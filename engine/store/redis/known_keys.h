// What this process knows of keys elsewhere, bounded. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store::redis {

/// What was last noted of each key. Where there are too many, those go that were inserted first. Not
/// thread-safe.
template <typename Note>
class KnownKeys {
 public:
  explicit KnownKeys(size_t max_keys) : max_keys_(max_keys) {}

  void Insert(const ChunkKey& key, Note note) {
    const auto [found, is_new] = notes_.try_emplace(key);
    found->second.note = std::move(note);
    if (!is_new) return;
    found->second.number = ++inserted_;
    order_.emplace_back(key, inserted_);
    while (notes_.size() > max_keys_) {
      if (IsKnown(order_.front())) notes_.erase(order_.front().first);
      order_.pop_front();
    }
    if (order_.size() > 2 * max_keys_) {
      order_.erase(
          std::remove_if(order_.begin(), order_.end(), [this](const auto& at) { return !IsKnown(at); }),
          order_.end());
    }
  }
  void Erase(const ChunkKey& key) { notes_.erase(key); }
  void Clear() {
    notes_.clear();
    order_.clear();
  }
  /// Null when nothing is known; valid until the next change.
  const Note* Find(const ChunkKey& key) const {
    const auto found = notes_.find(key);
    return found == notes_.end() ? nullptr : &found->second.note;
  }
  size_t size() const { return notes_.size(); }
  std::vector<std::pair<ChunkKey, Note>> All() const {
    std::vector<std::pair<ChunkKey, Note>> all;
    for (const auto& [key, known] : notes_) all.emplace_back(key, known.note);
    return all;
  }

 private:
  struct Known {
    Note note = {};
    uint64_t number = 0;  // of its insertion
  };
  using Insertion = std::pair<ChunkKey, uint64_t>;

  /// Whether the key was not erased since, not even if it came again.
  bool IsKnown(const Insertion& insertion) const {
    const auto found = notes_.find(insertion.first);
    return found != notes_.end() && found->second.number == insertion.second;
  }

  const size_t max_keys_;
  uint64_t inserted_ = 0;
  absl::flat_hash_map<ChunkKey, Known> notes_;
  std::deque<Insertion> order_;  // of all that are known, and of some that were
};

}  // namespace kvblend::store::redis
