#include "engine/schedule/fair_share.h"

#include <algorithm>
#include <limits>

namespace kvblend::schedule {

void FairShare::Join(const std::string& key) {
  KeepFloorAmongThoseHere();
  Account& account = accounts_[key];
  if (account.jobs++ > 0) return;
  account.had = std::max(account.had, floor_);
  ++here_;
  Forget();
}

void FairShare::Leave(const std::string& key) {
  KeepFloorAmongThoseHere();
  if (--accounts_.find(key)->second.jobs > 0) return;
  --here_;
  // An idle machine owes nobody anything: whoever comes next begins level with all others.
  if (here_ == 0) {
    for (const auto& [name, account] : accounts_) floor_ = std::max(floor_, account.had);
  }
}

void FairShare::Charge(const std::string& key, double seconds, double counts) {
  const auto [account, is_new] = accounts_.try_emplace(key);
  if (is_new) account->second.had = floor_;
  const double charged = counts * std::max(seconds, kLeast);
  account->second.had += charged;
  const int sharing = here_ + (account->second.jobs == 0 ? 1 : 0);
  floor_ += charged / sharing;
  Forget();
}

double FairShare::Of(const std::string& key) const { return accounts_.find(key)->second.had; }

void FairShare::KeepFloorAmongThoseHere() {
  if (here_ == 0) return;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const auto& [key, account] : accounts_) {
    if (account.jobs == 0) continue;
    least = std::min(least, account.had);
    most = std::max(most, account.had);
  }
  floor_ = std::clamp(floor_, least, most);
}

void FairShare::Forget() {
  if (accounts_.size() < forget_at_) return;
  absl::erase_if(accounts_,
                 [&](const auto& entry) { return entry.second.jobs == 0 && entry.second.had <= floor_; });
  forget_at_ = std::max<size_t>(32, 2 * accounts_.size());
}

}  // namespace kvblend::schedule
