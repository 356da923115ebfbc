// The Redis tier as operators see it: what is there, what is to go, and its figures.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend::store {
namespace {

constexpr absl::Duration kMaxErasurePause = absl::Minutes(1);
/// Headers that are asked for together, within the budget, when nobody wants to read the entries.
constexpr size_t kStatsAtOnce = 128;

}  // namespace

std::vector<bool> RedisTier::Lack(absl::Span<const ChunkKey> keys, const KvFormat& format) {
  std::vector<bool> lacking;
  lacking.reserve(keys.size());
  for (; !keys.empty(); keys.remove_prefix(std::min(kStatsAtOnce, keys.size()))) {
    const absl::Span<const ChunkKey> some = keys.subspan(0, kStatsAtOnce);
    std::vector<uint64_t> periods;
    for (const ChunkKey& key : some) periods.push_back(PeriodOf(key));
    const std::vector<redis::EntryWriter::Holding> holdings =
        writer_.Look(some, format.num_layers, options_.now() + options_.budget);
    for (size_t i = 0; i < some.size(); ++i) {
      const redis::EntryWriter::Holding& holding = holdings[i];
      const bool ends_soon =
          ttl_seconds_ > 0 && holding.time_left.has_value() && *holding.time_left < lifetime() / 2;
      if (holding.answered && !holding.whole) Miss(some[i], periods[i]);
      if (holding.answered && ends_soon) Forget(some[i]);  // so that what is offered is prolonged
      absl::MutexLock lock(&mutex_);
      lacking.push_back(holding.answered &&
                        (!holding.whole || ends_soon || pending_erasures_.Find(some[i]) != nullptr));
    }
  }
  return lacking;
}

std::optional<ChunkInfo> RedisTier::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  return StatAll(filter, absl::MakeConstSpan(&key, 1))[0];
}

std::vector<std::optional<ChunkInfo>> RedisTier::StatAll(NamespaceFilter filter,
                                                         absl::Span<const ChunkKey> keys) const {
  std::vector<std::optional<ChunkInfo>> infos;
  infos.reserve(keys.size());
  for (; !keys.empty(); keys.remove_prefix(std::min(kStatsAtOnce, keys.size()))) {
    const absl::Span<const ChunkKey> some = keys.subspan(0, kStatsAtOnce);
    for (const redis::FoundHeader& found :
         redis::ReadHeaders(*cluster_, some, options_.now() + options_.budget)) {
      infos.push_back(InfoOf(filter, found.header));
    }
  }
  return infos;
}

std::optional<ChunkInfo> RedisTier::InfoOf(NamespaceFilter filter,
                                           const absl::StatusOr<EntryHeader>& header) const {
  if (!header.ok() || !header->address.IsIn(filter)) return std::nullopt;
  const ChunkAddress& address = header->address;
  {
    absl::MutexLock lock(&mutex_);
    if (IsToBeErased(address)) return std::nullopt;
  }
  return ChunkInfo{.key = address.key,
                   .content_key = address.content_key,
                   .anchor_hash = address.anchor_hash,
                   .tenant_namespace = address.tenant_namespace,
                   .label = header->label,
                   .num_tokens = address.num_tokens,
                   .bytes = header->total_bytes(),
                   .tier = Tier::kRedis,
                   .pinned = false,
                   .hits = 0,
                   .compute_cost_seconds = header->compute_cost_seconds,
                   .created = header->created,
                   .last_used = header->created};
}

absl::StatusOr<bool> RedisTier::Erase(NamespaceFilter filter, const ChunkKey& key) {
  absl::StatusOr<bool> erased = EraseNow(filter, key);
  if (erased.ok()) return erased;
  absl::MutexLock lock(&mutex_);
  known_.Erase(key);
  pending_erasures_.Insert(key, filter.has_value() ? std::optional<std::string>(*filter) : std::nullopt);
  return absl::UnavailableError(erased.status().message());
}

absl::StatusOr<bool> RedisTier::EraseNow(NamespaceFilter filter, const ChunkKey& key) {
  const absl::StatusOr<EntryHeader> header =
      redis::ReadHeader(*cluster_, redis::Lane::kWrite, key, absl::InfiniteFuture());
  if (header.ok() && !header->address.IsIn(filter)) return false;
  const bool is_damaged = absl::IsDataLoss(header.status()) || absl::IsUnimplemented(header.status());
  const bool found = header.ok() || is_damaged;
  absl::Status status = absl::IsNotFound(header.status()) ? absl::OkStatus() : header.status();
  if (found) {
    Forget(key);
    // Waits for the reply: from then on no server finds it.
    status = writer_.RemoveHeader(key);
    if (status.ok() && header.ok()) Remove(header->address);
    if (status.ok() && is_damaged) writer_.RemoveAllLayers(key);
  }
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    pending_erasures_.Erase(key);
    stats_.erased += found ? 1 : 0;
    return found;
  }
  ++stats_.erase_failures;
  return status;
}

bool RedisTier::RetryErasures() {
  std::vector<std::pair<ChunkKey, std::optional<std::string>>> pending;
  {
    absl::MutexLock lock(&mutex_);
    pending = pending_erasures_.All();
  }
  bool all_done = true;
  for (const auto& [key, tenant_namespace] : pending) {
    if (!cluster_->Works(redis::EntryKeys(key).Header())) continue;
    absl::MutexLock no_writes(&erasing_mutex_);
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return true;
      if (pending_erasures_.Find(key) == nullptr) continue;  // somebody has put it again, or it is gone
    }
    const absl::StatusOr<bool> erased = EraseNow(tenant_namespace, key);
    all_done &= erased.ok();
    if (!erased.ok()) continue;
    absl::MutexLock lock(&mutex_);
    pending_erasures_.Erase(key);  // also that of another namespace, which is not to be erased
  }
  return all_done;
}

void RedisTier::RunErasures() {
  // A Redis that works and still refuses, as for want of rights, is asked less and less often.
  absl::Duration pause = options_.erasure_retry_interval;
  const auto work = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || pending_erasures_.size() > 0; };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&work));
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), pause)) return;
    }
    pause = RetryErasures() ? options_.erasure_retry_interval : std::min(2 * pause, kMaxErasurePause);
  }
}

absl::Status RedisTier::SetPinned(NamespaceFilter /*filter*/, const ChunkKey& key, bool /*pinned*/) {
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), ": nothing can be pinned in Redis"));
}

RedisTierStats RedisTier::Stats() const {
  const redis::ClusterStats network = cluster_->stats();
  absl::MutexLock lock(&mutex_);
  RedisTierStats stats = stats_;
  static_cast<redis::ClusterCounters&>(stats) = network;
  stats.pending_erasures = static_cast<int64_t>(pending_erasures_.size());
  stats.nodes = static_cast<int64_t>(network.nodes.size());
  stats.nodes_working = std::count_if(network.nodes.begin(), network.nodes.end(), [](const auto& node) {
    return node.state == redis::NodeState::kWorking;
  });
  return stats;
}

TierStats RedisTier::Report() const {
  const RedisTierStats stats = Stats();
  return {.tier = tier(),
          .failing = stats.nodes_working == 0,
          .values = FiguresOf<RedisTierStats>(stats, kRedisFigures)};
}

}  // namespace kvblend::store
