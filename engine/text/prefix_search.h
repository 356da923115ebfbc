// Which strings of a set a text begins with.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace kvblend::text {

/// Entries have a field `text`, not empty. Immutable once finished; safe from any thread.
template <typename Entry>
class PrefixSearch {
 public:
  void Add(Entry entry) { entries_.push_back(std::move(entry)); }

  /// Must be called once, after the last Add.
  void Finish() {
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.text < b.text; });
    for (const Entry& entry : entries_) ++first_of_byte_[static_cast<uint8_t>(entry.text[0]) + 1];
    for (size_t byte = 0; byte < 256; ++byte) first_of_byte_[byte + 1] += first_of_byte_[byte];
  }

  bool empty() const { return entries_.empty(); }

  /// Calls body(entry) for the entries that `text`, not empty, begins with, the shortest first; of several
  /// with the same text for the one that was added first. Takes a binary search for every byte that entries
  /// go on with.
  template <typename Body>
  void ForEach(std::string_view text, const Body& body) const {
    // Entries that share the first `length` bytes of `text` are neighbours; those that end there come first.
    const auto first = static_cast<uint8_t>(text[0]);
    auto begin = entries_.begin() + static_cast<ptrdiff_t>(first_of_byte_[first]);
    auto end = entries_.begin() + static_cast<ptrdiff_t>(first_of_byte_[first + 1]);
    for (size_t length = 1; begin != end; ++length) {
      if (begin->text.size() == length) body(*begin);
      while (begin != end && begin->text.size() == length) ++begin;
      if (length == text.size()) return;
      const auto next = static_cast<uint8_t>(text[length]);
      const auto at = [length](const Entry& entry) { return static_cast<uint8_t>(entry.text[length]); };
      begin = std::partition_point(begin, end, [&](const Entry& entry) { return at(entry) < next; });
      end = std::partition_point(begin, end, [&](const Entry& entry) { return at(entry) == next; });
    }
  }

 private:
  std::vector<Entry> entries_;               // sorted by text
  std::array<size_t, 257> first_of_byte_{};  // entries that begin with byte b: [first_of_byte_[b], [b + 1])
};

}  // namespace kvblend::text
