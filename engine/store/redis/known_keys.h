// What this process knows of keys elsewhere, bounded. Private to this folder.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store::redis {

/// What was last noted of each key; the oldest go first. Not thread-safe.
template <typename Note>
class KnownKeys {
 public:
  explicit KnownKeys(size_t max_keys) : max_keys_(max_keys) {}

  void Insert(const ChunkKey& key, Note note) {
    if (notes_.insert_or_assign(key, std::move(note)).second) order_.push_back(key);
    // A key that was erased and came again stands there twice: then the later one goes early, which costs
    // nothing but a question.
    while (order_.size() > max_keys_) {
      notes_.erase(order_.front());
      order_.pop_front();
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
    return found == notes_.end() ? nullptr : &found->second;
  }
  size_t size() const { return notes_.size(); }
  std::vector<std::pair<ChunkKey, Note>> All() const { return {notes_.begin(), notes_.end()}; }

 private:
  const size_t max_keys_;
  absl::flat_hash_map<ChunkKey, Note> notes_;
  std::deque<ChunkKey> order_;  // of insertion; may name keys twice, or ones that are gone
};

}  // namespace kvblend::store::redis
