#include "engine/store/chunk_handle.h"

#include <cassert>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/store/chunk_entry.h"
#include "engine/store/chunk_store.h"
#include "engine/store/chunk_waiter.h"

namespace kvblend::store {

// --- ChunkHandle

ChunkHandle::ChunkHandle(ChunkHandle&& other) noexcept
    : store_(other.store_), entry_(std::exchange(other.entry_, nullptr)), tier_(other.tier_) {}

ChunkHandle& ChunkHandle::operator=(ChunkHandle&& other) noexcept {
  ChunkHandle taken(std::move(other));  // takes what this object held along when it goes
  std::swap(store_, taken.store_);
  std::swap(entry_, taken.entry_);
  std::swap(tier_, taken.tier_);
  return *this;
}

ChunkHandle::~ChunkHandle() {
  if (entry_ != nullptr) store_->ReleaseHandle(entry_);
}

// Only what is written once is read here, so no lock is needed.
const ChunkKey& ChunkHandle::key() const { return entry_->address.key; }
const ContentKey& ChunkHandle::content_key() const { return entry_->address.content_key; }
const Digest& ChunkHandle::anchor_hash() const { return entry_->address.anchor_hash; }
const KvFormat& ChunkHandle::format() const { return entry_->address.format; }
int64_t ChunkHandle::size_bytes() const { return entry_->bytes; }
int32_t ChunkHandle::num_tokens() const { return entry_->address.num_tokens; }

int32_t ChunkHandle::num_missing_layers() const {
  return entry_->arriving == nullptr ? 0 : entry_->arriving->num_missing();
}

bool ChunkHandle::lost() const { return entry_->arriving != nullptr && entry_->arriving->failed(); }

absl::StatusOr<LayerKv> ChunkHandle::AcquireLayer(int32_t layer, absl::Time deadline) const {
  const int32_t num_layers = entry_->address.format.num_layers;
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", key().ToHex(), ": layer is ", layer, "; allowed: 0 to ", num_layers - 1));
  }
  if (entry_->arriving != nullptr) {
    if (absl::Status s = entry_->arriving->WaitForLayer(layer, deadline); !s.ok()) return s;
  }
  return entry_->kv->Layer(layer);
}

// --- Reservation

Reservation::Reservation(Reservation&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), address_(std::move(other.address_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  Reservation taken(std::move(other));  // takes what this object held along when it goes
  std::swap(store_, taken.store_);
  std::swap(address_, taken.address_);
  return *this;
}

Reservation::~Reservation() {
  if (store_ != nullptr) store_->Abandon(address_.key);
}

absl::StatusOr<ChunkHandle> Reservation::Commit(std::unique_ptr<ChunkKv> kv, const InsertOptions& options) {
  if (store_ == nullptr) return absl::FailedPreconditionError("chunk reservation was already committed");
  return std::exchange(store_, nullptr)->Commit(address_, std::move(kv), options);
}

// --- Pending

Pending::Pending(ChunkStore* store, ChunkAddress address, std::shared_ptr<internal::Waiter> waiter)
    : store_(store), address_(std::move(address)), waiter_(std::move(waiter)) {}

Pending::Pending(Pending&& other) noexcept
    : store_(other.store_), address_(std::move(other.address_)), waiter_(std::move(other.waiter_)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  Pending taken(std::move(other));  // takes what this object held along when it goes
  std::swap(store_, taken.store_);
  std::swap(address_, taken.address_);
  std::swap(waiter_, taken.waiter_);
  return *this;
}

Pending::~Pending() {
  if (waiter_ != nullptr) store_->StopWaiting(address_.key, waiter_);
}

absl::StatusOr<Pending::Outcome> Pending::Wait(absl::Time deadline) {
  if (waiter_ == nullptr)
    return absl::FailedPreconditionError("outcome of a pending chunk was already taken");
  if (!waiter_->ready.WaitForNotificationWithDeadline(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("chunk ", address_.key.ToHex(), " is still being computed for another request"));
  }
  const std::shared_ptr<internal::Waiter> waiter = std::move(waiter_);
  return store_->TakeOutcome(address_, *waiter);
}

void Pending::NotifyWhenReady(absl::AnyInvocable<void()> ready) {
  assert(waiter_ != nullptr);
  store_->SetCallback(*waiter_, std::move(ready));
}

}  // namespace kvblend::store
