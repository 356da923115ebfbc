#include "engine/serve/sequences/page_turns.h"

#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvblend {
namespace {

/// What parties have.
class Holdings {
 public:
  explicit Holdings(absl::Span<const PageHolder> holders) : holders_(holders) {}

  void Add(size_t holder) {
    Holding& own = parties_[holders_[holder].party];
    own.pages += holders_[holder].pages;
    own.holders.push_back(holder);
  }

  /// Takes out the last answer of the party that gives way first, of those that keep at least so many pages.
  std::optional<size_t> TakeNext(int64_t keeps) {
    const auto may_give = [&](const Holding& holding) {
      return holding.holders.size() > 1 && holding.pages - holders_[holding.holders.back()].pages >= keeps;
    };
    // The last answer decides between equals, so that the order of a hash table never does.
    const auto rank = [](const auto& party) {
      return std::tuple(party.first.priority, party.second.pages, party.second.holders.back());
    };
    auto next = parties_.end();
    for (auto party = parties_.begin(); party != parties_.end(); ++party) {
      if (may_give(party->second) && (next == parties_.end() || rank(*party) > rank(*next))) next = party;
    }
    if (next == parties_.end()) return std::nullopt;
    const size_t last = next->second.holders.back();
    next->second.pages -= holders_[last].pages;
    next->second.holders.pop_back();
    return last;
  }

 private:
  struct Holding {
    int64_t pages = 0;
    std::vector<size_t> holders;
  };
  const absl::Span<const PageHolder> holders_;
  absl::flat_hash_map<Party, Holding> parties_;
};

}  // namespace

size_t NextToGivePagesUp(absl::Span<const PageHolder> holders) {
  Holdings lowest(holders);
  for (size_t i = 0; i < holders.size(); ++i) {
    if (holders[i].party.priority == holders.back().party.priority) lowest.Add(i);
  }
  return lowest.TakeNext(/*keeps=*/0).value_or(holders.size() - 1);
}

std::vector<size_t> GivingWay(absl::Span<const PageHolder> holders, const Party& newcomer, int64_t claimed,
                              int64_t missing) {
  Holdings others(holders);
  for (size_t i = 0; i < holders.size(); ++i) {
    // The later a priority stands, the less urgent it is.
    if (holders[i].party != newcomer && holders[i].party.priority >= newcomer.priority) others.Add(i);
  }
  std::vector<size_t> giving;
  while (missing > 0) {
    const std::optional<size_t> next = others.TakeNext(/*keeps=*/claimed);
    if (!next.has_value()) return {};
    missing -= holders[*next].pages;
    giving.push_back(*next);
  }
  return giving;
}

}  // namespace kvblend
