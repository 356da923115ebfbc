// Which pages of a pool are free, as ranges of neighbours.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace kvblend::kv {

/// Disjoint ranges of pages, no two of them adjacent. Not thread-safe.
class PageRanges {
 public:
  int32_t num_pages() const { return num_pages_; }

  /// Pages [first, first + count), merged with their neighbours. REQUIRES: none of them is here already
  void Add(int32_t first, int32_t count);

  /// Takes out `count` pages: from the smallest range that has so many, so that large ranges stay whole;
  /// where no range has, whole ranges from the largest down. Pages of one range ascend.
  /// REQUIRES: 0 <= count <= num_pages()
  std::vector<int32_t> Take(int32_t count);

 private:
  void Insert(int32_t first, int32_t count);
  void Erase(int32_t first, int32_t count);

  std::map<int32_t, int32_t> ranges_;               // first page -> number of pages
  std::set<std::pair<int32_t, int32_t>> by_count_;  // (number, first page) of each
  int32_t num_pages_ = 0;
};

}  // namespace kvblend::kv
