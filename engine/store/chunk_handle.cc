#include "engine/store/chunk_handle.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/chunk_entry.h"

namespace kvblend::store {

// --- ChunkHandle

ChunkHandle::ChunkHandle(ChunkHandle&& other) noexcept
    : lender_(other.lender_),
      entry_(std::exchange(other.entry_, nullptr)),
      tier_(other.tier_),
      reader_(other.reader_) {}

ChunkHandle& ChunkHandle::operator=(ChunkHandle&& other) noexcept {
  ChunkHandle taken(std::move(other));  // releases what this object held at the end
  std::swap(lender_, taken.lender_);
  std::swap(entry_, taken.entry_);
  std::swap(tier_, taken.tier_);
  std::swap(reader_, taken.reader_);
  return *this;
}

ChunkHandle::~ChunkHandle() {
  if (entry_ != nullptr) lender_->Return(entry_);
}

// Read here are only fields that are written once, so no lock is needed.
const ChunkKey& ChunkHandle::key() const { return entry_->address.key; }
const Digest& ChunkHandle::anchor_hash() const { return entry_->address.anchor_hash; }
const KvFormat& ChunkHandle::format() const { return entry_->address.format; }
int64_t ChunkHandle::size_bytes() const { return entry_->bytes; }
int32_t ChunkHandle::num_tokens() const { return entry_->address.num_tokens; }

int32_t ChunkHandle::num_missing_layers() const {
  return entry_->arriving == nullptr ? 0 : entry_->arriving->num_missing();
}

bool ChunkHandle::lost() const { return entry_->arriving != nullptr && entry_->arriving->failed(); }

void ChunkHandle::AskForLayer(int32_t layer) const {
  if (!entry_->is_whole()) entry_->arriving->Ask(reader_, layer);
}

absl::StatusOr<LayerKv> ChunkHandle::AcquireLayer(int32_t layer, absl::Time deadline) const {
  const int32_t num_layers = entry_->address.format.num_layers;
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", key().ToHex(), ": layer is ", layer, "; allowed: 0 to ", num_layers - 1));
  }
  if (entry_->arriving != nullptr) {
    KVBLEND_RETURN_IF_ERROR(entry_->arriving->WaitForLayer(reader_, layer, deadline));
  }
  return entry_->kv->Layer(layer);
}

// --- Reservation

Reservation::Reservation(Reservation&& other) noexcept
    : lender_(std::exchange(other.lender_, nullptr)), address_(std::move(other.address_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  Reservation taken(std::move(other));  // releases what this object held at the end
  std::swap(lender_, taken.lender_);
  std::swap(address_, taken.address_);
  return *this;
}

Reservation::~Reservation() {
  if (lender_ != nullptr) lender_->Abandon(address_.key);
}

absl::StatusOr<ChunkHandle> Reservation::Commit(std::unique_ptr<ChunkKv> kv, const InsertOptions& options) {
  if (lender_ == nullptr) return absl::FailedPreconditionError("chunk reservation was already committed");
  return std::exchange(lender_, nullptr)->Commit(address_, std::move(kv), options);
}

}  // namespace kvblend::store
