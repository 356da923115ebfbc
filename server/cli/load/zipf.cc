#include "server/cli/load/zipf.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/cli/load/arrivals.h"

namespace kvblend::server::cli {

ZipfChoice::ZipfChoice(int count, double exponent) {
  weights_.reserve(count);
  for (int rank = 1; rank <= count; ++rank) weights_.push_back(std::pow(rank, -exponent));
}

std::vector<int> ZipfChoice::Draw(int wanted, std::mt19937_64& random) const {
  std::vector<std::pair<double, int>> keys;  // the first to "happen" at a rate of its weight is drawn first
  keys.reserve(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    keys.emplace_back(-std::log1p(-UniformDraw(random)) / weights_[i], static_cast<int>(i));
  }
  const size_t count = std::min(static_cast<size_t>(std::max(wanted, 0)), keys.size());
  std::partial_sort(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), keys.end());
  std::vector<int> drawn;
  for (size_t i = 0; i < count; ++i) drawn.push_back(keys[i].second);
  return drawn;
}

}  // namespace kvblend::server::cli
