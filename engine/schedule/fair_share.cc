#include "engine/schedule/fair_share.h"

#include <algorithm>
#include <limits>

namespace kvblend::schedule {

void FairShare::Join(const std::string& key) {
  Account& account = accounts_[key];
  if (account.jobs++ == 0) account.had = std::max(account.had, floor_);
}

void FairShare::Leave(const std::string& key) {
  --accounts_.find(key)->second.jobs;
  Settle();
}

void FairShare::Charge(const std::string& key, double seconds, double counts) {
  const auto [account, is_new] = accounts_.try_emplace(key);
  if (is_new) account->second.had = floor_;
  account->second.had += counts * std::max(seconds, kLeast);
  Settle();
}

double FairShare::Of(const std::string& key) const { return accounts_.find(key)->second.had; }

void FairShare::Settle() {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [key, account] : accounts_) {
    if (account.jobs > 0) least = std::min(least, account.had);
  }
  if (least == std::numeric_limits<double>::infinity()) {
    // Nobody is here: whoever comes first begins where the one who had most left off, or not far from it.
    for (const auto& [key, account] : accounts_) floor_ = std::max(floor_, account.had);
  } else {
    floor_ = std::max(floor_, least);
  }
  absl::erase_if(accounts_,
                 [&](const auto& entry) { return entry.second.jobs == 0 && entry.second.had <= floor_; });
}

}  // namespace kvblend::schedule
