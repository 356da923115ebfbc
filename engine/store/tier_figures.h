// A tier's figures, written once: a struct of counts, and beside it a table of what each is called.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/stats.h"

namespace kvblend::store {

/// One row of the table.
template <typename Counts>
struct TierFigure {
  std::variant<int64_t Counts::*, double Counts::*, bool Counts::*> member;
  std::string_view name;  // as TierStat says
  std::string_view help;
  TierStat::Kind kind = TierStat::Kind::kCounter;
};

template <typename Counts>
std::vector<TierStat> FiguresOf(const Counts& counts, absl::Span<const TierFigure<Counts>> table) {
  std::vector<TierStat> figures;
  for (const TierFigure<Counts>& row : table) {
    const double value =
        std::visit([&](auto member) { return static_cast<double>(counts.*member); }, row.member);
    figures.push_back({.name = row.name, .help = row.help, .kind = row.kind, .value = value});
  }
  return figures;
}

}  // namespace kvblend::store
