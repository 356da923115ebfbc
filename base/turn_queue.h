// What waits of several, who take turns.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvblend {

/// A queue in which each key has its own, and the keys take turns: whoever has much waiting comes no sooner
/// for it, and others wait for one item of each key. Not thread-safe.
template <typename Item>
class TurnQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  void Push(const std::string& key, Item item) {
    std::deque<Item>& waiting = waiting_[key];
    if (waiting.empty()) turns_.push_back(key);
    waiting.push_back(std::move(item));
    ++size_;
  }

  /// The first of the key whose turn it is. REQUIRES: !empty().
  Item Pop() {
    std::string key = std::move(turns_.front());
    turns_.pop_front();
    const auto found = waiting_.find(key);
    Item item = std::move(found->second.front());
    found->second.pop_front();
    --size_;
    if (found->second.empty()) {
      waiting_.erase(found);
    } else {
      turns_.push_back(std::move(key));
    }
    return item;
  }

 private:
  absl::flat_hash_map<std::string, std::deque<Item>> waiting_;  // none is empty
  std::deque<std::string> turns_;                               // the keys of waiting_
  size_t size_ = 0;
};

}  // namespace kvblend
