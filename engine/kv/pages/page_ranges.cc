#include "engine/kv/pages/page_ranges.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace kvblend::kv {

void PageRanges::Insert(int32_t first, int32_t count) {
  ranges_.emplace(first, count);
  by_count_.emplace(count, first);
  num_pages_ += count;
}

void PageRanges::Erase(int32_t first, int32_t count) {
  ranges_.erase(first);
  by_count_.erase({count, first});
  num_pages_ -= count;
}

void PageRanges::Add(int32_t first, int32_t count) {
  if (count == 0) return;
  const auto next = ranges_.lower_bound(first);
  assert((next == ranges_.end() || first + count <= next->first) && "page given back twice");
  int32_t begin = first, end = first + count;
  if (next != ranges_.begin()) {
    const auto [previous_first, previous_count] = *std::prev(next);
    assert(previous_first + previous_count <= first && "page given back twice");
    if (previous_first + previous_count == first) {
      begin = previous_first;
      Erase(previous_first, previous_count);
    }
  }
  if (next != ranges_.end() && next->first == end) {
    const auto [next_first, next_count] = *next;
    end += next_count;
    Erase(next_first, next_count);
  }
  Insert(begin, end - begin);
}

std::vector<int32_t> PageRanges::Take(int32_t count) {
  assert(count <= num_pages_);
  std::vector<int32_t> pages;
  pages.reserve(count);
  while (count > 0) {
    const auto fitting = by_count_.lower_bound({count, 0});
    const auto [range_count, first] = fitting != by_count_.end() ? *fitting : *by_count_.rbegin();
    const int32_t taken = std::min(count, range_count);
    for (int32_t i = 0; i < taken; ++i) pages.push_back(first + i);
    Erase(first, range_count);
    if (taken < range_count) Insert(first + taken, range_count - taken);
    count -= taken;
  }
  return pages;
}

}  // namespace kvblend::kv
