// The part of ChunkStore by which a missing chunk is computed once, however many ask for it.
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/store/chunk_store.h"
#include "engine/store/chunk_waiter.h"

namespace kvblend::store {

void ChunkStore::Deferred::Run() {
  freed.clear();
  for (const std::shared_ptr<ArrivingKv>& arriving : unfinished) arriving->AskForRest();
  unfinished.clear();
  for (const std::shared_ptr<Waiter>& waiter : ready) {
    waiter->ready.Notify();
    // Moved here under the lock by nobody else: `resolved` is set, so SetCallback no longer stores one.
    if (waiter->callback) std::exchange(waiter->callback, nullptr)();
  }
  ready.clear();
}

absl::StatusOr<ReserveResult> ChunkStore::LookupOrReserve(const ChunkAddress& address) {
  const absl::StatusOr<int64_t> kv_bytes = ChunkKv::SizeBytes(address.format, address.num_tokens);
  if (!kv_bytes.ok()) return kv_bytes.status();
  std::optional<ChunkHandle> found;
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    if (Entry* entry = FindUsable(address.key, deferred); entry != nullptr) {
      found = HitLocked(entry, nullptr);
      OfferToLower(*entry);
    }
  }
  deferred.Run();
  if (!found.has_value()) {
    std::vector<std::optional<ChunkHandle>> fetched(1);
    Fetch(absl::MakeConstSpan(&address.key, 1), /*reads=*/nullptr, /*is_use=*/true, fetched);
    found = std::move(fetched.front());
  }

  // Counted in one go, so that the sums hold at every moment.
  absl::MutexLock lock(&mutex_);
  if (!found.has_value()) {
    if (Entry* entry = FindLocked(address.key); entry != nullptr)
      found = HitLocked(entry, nullptr);  // since then
  }
  if (found.has_value()) {
    ++stats_.reserve_lookups;
    ++stats_.reserve_hits;
    return *std::move(found);
  }
  ++stats_.reserve_lookups;
  if (auto slot = reservations_.find(address.key); slot != reservations_.end()) {
    ++stats_.waits;
    auto waiter = std::make_shared<Waiter>();
    slot->second.waiters.push_back(waiter);
    return Pending(this, address, std::move(waiter));
  }
  if (*kv_bytes > options_.byte_budget - stats_.pinned_bytes - kEntryOverheadBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("chunk store: a chunk of ", address.num_tokens, " tokens needs ",
                     *kv_bytes + kEntryOverheadBytes, " bytes; the budget is ", options_.byte_budget,
                     " bytes, of which ", stats_.pinned_bytes, " are pinned"));
  }
  ++stats_.reservations_made;
  reservations_.try_emplace(address.key);
  return Reservation(this, address);
}

absl::StatusOr<ChunkHandle> ChunkStore::Commit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                               const InsertOptions& options) {
  if (absl::Status s = CheckInsert(address, kv.get(), options); !s.ok()) {
    Abandon(address.key);
    return s;
  }
  Deferred deferred;
  absl::ReleasableMutexLock lock(&mutex_);
  absl::StatusOr<ChunkHandle> handle = InsertLocked(address, kv, options, deferred);
  // After a success nobody waits any more, so this only ends the reservation.
  AbandonLocked(address.key, deferred);
  lock.Release();
  deferred.Run();
  return handle;
}

void ChunkStore::ResolveWaiters(const ChunkKey& key, Entry* entry, Deferred& deferred) {
  const auto slot = reservations_.find(key);
  if (slot == reservations_.end()) return;
  for (std::shared_ptr<Waiter>& waiter : slot->second.waiters) {
    AddHandle(entry);
    waiter->resolved = true;
    waiter->entry = entry;
    deferred.ready.push_back(std::move(waiter));
  }
  slot->second.waiters.clear();
}

void ChunkStore::AbandonLocked(const ChunkKey& key, Deferred& deferred) {
  const auto slot = reservations_.find(key);
  assert(slot != reservations_.end());
  if (slot->second.waiters.empty()) {
    reservations_.erase(slot);
    return;
  }
  std::shared_ptr<Waiter> next = std::move(slot->second.waiters.front());
  slot->second.waiters.pop_front();
  next->resolved = true;
  deferred.ready.push_back(std::move(next));
}

void ChunkStore::Abandon(const ChunkKey& key) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    AbandonLocked(key, deferred);
  }
  deferred.Run();
}

Pending::Outcome ChunkStore::TakeOutcome(const ChunkAddress& address, Waiter& waiter) {
  absl::MutexLock lock(&mutex_);
  assert(waiter.resolved);
  if (waiter.entry == nullptr) return Reservation(this, address);
  ++waiter.entry->hits;
  waiter.entry->last_used = options_.now();
  return ChunkHandle(this, waiter.entry);
}

void ChunkStore::SetCallback(Waiter& waiter, absl::AnyInvocable<void()> ready) {
  {
    absl::MutexLock lock(&mutex_);
    if (!waiter.resolved) {
      waiter.callback = std::move(ready);
      return;
    }
  }
  waiter.ready.WaitForNotification();  // at most the moment between `resolved` and its notification
  ready();
}

void ChunkStore::StopWaiting(const ChunkKey& key, const std::shared_ptr<Waiter>& waiter) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    if (!waiter->resolved) {
      std::deque<std::shared_ptr<Waiter>>& waiters = reservations_.at(key).waiters;
      std::erase(waiters, waiter);
    } else if (waiter->entry != nullptr) {
      DropHandle(waiter->entry, deferred);
    } else {
      AbandonLocked(key, deferred);
    }
  }
  deferred.Run();
}

}  // namespace kvblend::store
