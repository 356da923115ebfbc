#include "tests/support/memory_lower_tier.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/status_macros.h"

namespace kvblend::test_support {

using kvblend::ChunkInfo;
using kvblend::ChunkKey;

void MemoryDisk::HoldReads(bool hold) {
  absl::MutexLock lock(&mutex_);
  hold_ = hold;
}

void MemoryDisk::Submit(Read read) {
  {
    absl::MutexLock lock(&mutex_);
    if (hold_) {
      reads_.push_back(std::move(read));
      return;
    }
  }
  (*read.done)(read.copy());
}

bool MemoryDisk::Deliver() {
  std::optional<Read> next;
  {
    absl::MutexLock lock(&mutex_);
    const auto first = std::min_element(reads_.begin(), reads_.end(), [](const Read& a, const Read& b) {
      return std::tie(a.priority, a.id) < std::tie(b.priority, b.id);
    });
    if (first == reads_.end()) return false;
    next = std::move(*first);
    reads_.erase(first);
  }
  (*next->done)(next->copy());
  return true;
}

void MemoryDisk::DeliverAll() {
  while (Deliver()) {
  }
}

std::optional<store::ReadPriority> MemoryDisk::next_read() const {
  absl::MutexLock lock(&mutex_);
  std::optional<store::ReadPriority> next;
  for (const Read& read : reads_) next = std::min(next.value_or(read.priority), read.priority);
  return next;
}

void MemoryDisk::RaiseRead(store::ReadId id, store::ReadPriority priority) {
  absl::MutexLock lock(&mutex_);
  for (Read& read : reads_) {
    if (read.id == id) read.priority = std::min(read.priority, priority);
  }
}

void MemoryDisk::CancelRead(store::ReadId id) {
  std::optional<Read> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    const auto found =
        std::find_if(reads_.begin(), reads_.end(), [&](const Read& read) { return read.id == id; });
    if (found == reads_.end()) return;
    cancelled = std::move(*found);
    reads_.erase(found);
  }
  (*cancelled->done)(absl::CancelledError("nobody wants it any more"));
}

int64_t MemoryDisk::waiting_reads() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(reads_.size());
}

int64_t MemoryDisk::entries() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(entries_.size());
}

bool MemoryDisk::Contains(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  return entries_.contains(key);
}

int64_t MemoryDisk::FrequencyOf(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  return entries_.at(key)->frequency;
}

std::vector<ChunkKey> MemoryDisk::uses() const {
  absl::MutexLock lock(&mutex_);
  return uses_;
}

void MemoryDisk::Evict(const ChunkKey& key, int64_t frequency) {
  std::shared_ptr<Stored> stored;
  {
    absl::MutexLock lock(&mutex_);
    stored = entries_.extract(key).mapped();
  }
  if (listener_) listener_(stored, frequency);
}

bool MemoryDisk::IsPinned(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second->pinned;
}

class MemoryLowerEntry final : public store::LowerTierEntry {
 public:
  MemoryLowerEntry(std::shared_ptr<MemoryDisk> disk, std::shared_ptr<MemoryDisk::Stored> stored, Tier tier,
                   bool pinned)
      : disk_(std::move(disk)), stored_(std::move(stored)), tier_(tier), pinned_(pinned) {}

  Tier tier() const override { return tier_; }
  const store::EntryHeader& header() const override { return stored_->header; }
  bool pinned() const override { return pinned_; }

  absl::StatusOr<store::ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out,
                                          store::ReadPriority priority,
                                          absl::AnyInvocable<void(absl::Status)> done) override {
    store::ReadId id = 0;
    {
      absl::MutexLock lock(&disk_->mutex_);
      id = disk_->next_id_++;
    }
    const auto copy = [this, stored = stored_, layer, out]() {
      const ChunkKey& key = stored->header.address.key;
      if (disk_->read_fault) {
        if (absl::Status s = disk_->read_fault(key, layer); !s.ok()) {
          if (!absl::IsDataLoss(s)) return s;
          absl::MutexLock lock(&disk_->mutex_);
          const auto found = disk_->entries_.find(key);
          if (found != disk_->entries_.end() && found->second == stored) disk_->entries_.erase(found);
          return s;
        }
      }
      std::memcpy(out.data(), stored->bytes.data() + layer * out.size(), out.size());
      return absl::OkStatus();
    };
    disk_->Submit(
        {priority, id, copy, std::make_shared<absl::AnyInvocable<void(absl::Status)>>(std::move(done))});
    return id;
  }

  void RaiseRead(store::ReadId id, store::ReadPriority priority) override { disk_->RaiseRead(id, priority); }
  void CancelRead(store::ReadId id) override {
    if (disk_->tiers_ == 0) ++disk_->calls_without_tier;
    disk_->CancelRead(id);
  }

 private:
  const std::shared_ptr<MemoryDisk> disk_;
  const std::shared_ptr<MemoryDisk::Stored> stored_;
  const Tier tier_;
  const bool pinned_;
};

class MemoryLowerTier final : public store::LowerTier {
 public:
  MemoryLowerTier(std::shared_ptr<MemoryDisk> disk, Tier tier) : disk_(std::move(disk)), tier_(tier) {
    ++disk_->tiers_;
  }
  ~MemoryLowerTier() override {
    --disk_->tiers_;
    std::vector<MemoryDisk::Read> left;
    {
      absl::MutexLock lock(&disk_->mutex_);
      left.swap(disk_->reads_);
    }
    for (const MemoryDisk::Read& read : left) (*read.done)(absl::CancelledError("the tier ends"));
  }

  absl::Status Put(const store::ChunkAddress& address, const store::ChunkKv& kv,
                   const PutOptions& options) override {
    if (disk_->write_fault) KVBLEND_RETURN_IF_ERROR(disk_->write_fault(address.key));
    auto stored = std::make_shared<MemoryDisk::Stored>();
    stored->header = {.address = address,
                      .label = options.label,
                      .compute_cost_seconds = options.compute_cost_seconds,
                      .created = options.created,
                      .layers = ChecksumsOf(kv)};
    stored->frequency = options.frequency;
    for (int32_t layer = 0; layer < address.format.num_layers; ++layer) {
      const absl::Span<const std::byte> bytes = kv.LayerBytes(layer);
      stored->bytes.insert(stored->bytes.end(), bytes.begin(), bytes.end());
    }
    absl::MutexLock lock(&disk_->mutex_);
    disk_->entries_.try_emplace(address.key, std::move(stored));
    return absl::OkStatus();
  }

  void SetEvictionListener(EvictionListener listener) override {
    disk_->listener_ = [this, listener = std::move(listener)](
                           const std::shared_ptr<MemoryDisk::Stored>& stored, int64_t frequency) {
      listener(std::make_shared<MemoryLowerEntry>(disk_, stored, tier_, false), frequency);
    };
  }

  Tier tier() const override { return tier_; }
  TierStats Report() const override { return {.tier = tier(), .failing = false, .values = {}}; }
  bool durable() const override { return tier_ == Tier::kDisk; }

  std::vector<absl::StatusOr<std::shared_ptr<store::LowerTierEntry>>> OpenEntries(
      absl::Span<const ChunkKey> keys, absl::Time /*deadline*/) override {
    std::vector<absl::StatusOr<std::shared_ptr<store::LowerTierEntry>>> entries;
    {
      absl::MutexLock lock(&disk_->mutex_);
      for (const ChunkKey& key : keys) {
        const auto found = disk_->entries_.find(key);
        if (found == disk_->entries_.end()) {
          entries.push_back(absl::NotFoundError("no such entry"));
        } else {
          entries.push_back(
              std::make_shared<MemoryLowerEntry>(disk_, found->second, tier_, found->second->pinned));
        }
      }
    }
    if (disk_->after_open) disk_->after_open();
    return entries;
  }

  std::vector<std::optional<store::ContentMatch>> FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                absl::Time /*deadline*/) const override {
    std::vector<std::optional<store::ContentMatch>> matches;
    for (const ContentKey& content_key : content_keys) {
      std::optional<store::ContentMatch> best;
      for (const ChunkInfo& info : All(kAllNamespaces)) {
        const store::ContentMatch match{info.key, info.anchor_hash == store::IsolatedAnchorHash()};
        if (info.content_key == content_key && (!best.has_value() || match < *best)) best = match;
      }
      matches.push_back(best);
    }
    return matches;
  }
  std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const override {
    ++disk_->stat_calls;
    for (const ChunkInfo& info : All(filter)) {
      if (info.key == key) return info;
    }
    return std::nullopt;
  }
  bool Contains(const ChunkKey& key) const override { return disk_->Contains(key); }
  absl::Duration lifetime() const override { return disk_->lifetime; }
  void NoteUse(const store::ChunkAddress& address) override {
    absl::MutexLock lock(&disk_->mutex_);
    disk_->uses_.push_back(address.key);
  }
  std::vector<ChunkInfo> List(NamespaceFilter filter,
                              const std::optional<std::pair<std::string, ChunkKey>>& after,
                              int64_t limit) const override {
    std::vector<ChunkInfo> found;
    for (ChunkInfo& info : All(filter)) {
      if (after.has_value() && std::pair(info.tenant_namespace, info.key) <= *after) continue;
      if (static_cast<int64_t>(found.size()) < limit) found.push_back(std::move(info));
    }
    return found;
  }

  absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) override {
    if (!Stat(filter, key).has_value()) return false;
    if (disk_->erase_fault) KVBLEND_RETURN_IF_ERROR(disk_->erase_fault(key));
    absl::MutexLock lock(&disk_->mutex_);
    return disk_->entries_.erase(key) > 0;
  }
  absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) override {
    if (!Stat(filter, key).has_value()) return absl::NotFoundError("no such entry");
    if (disk_->pin_fault) KVBLEND_RETURN_IF_ERROR(disk_->pin_fault(key));
    absl::MutexLock lock(&disk_->mutex_);
    if (const auto found = disk_->entries_.find(key); found != disk_->entries_.end()) {
      found->second->pinned = pinned;
    }
    return absl::OkStatus();
  }

 private:
  /// In order of (namespace, key).
  std::vector<ChunkInfo> All(NamespaceFilter filter) const {
    std::vector<ChunkInfo> all;
    absl::MutexLock lock(&disk_->mutex_);
    for (const auto& [key, stored] : disk_->entries_) {
      const store::EntryHeader& header = stored->header;
      if (filter.has_value() && header.address.tenant_namespace != *filter) continue;
      all.push_back({.key = key,
                     .content_key = header.address.content_key,
                     .anchor_hash = header.address.anchor_hash,
                     .tenant_namespace = header.address.tenant_namespace,
                     .label = header.label,
                     .num_tokens = header.address.num_tokens,
                     .bytes = header.total_bytes(),
                     .tier = tier_,
                     .pinned = stored->pinned,
                     .compute_cost_seconds = header.compute_cost_seconds,
                     .created = header.created,
                     .last_used = header.created});
    }
    std::sort(all.begin(), all.end(), [](const ChunkInfo& a, const ChunkInfo& b) {
      return std::tie(a.tenant_namespace, a.key) < std::tie(b.tenant_namespace, b.key);
    });
    return all;
  }

  const std::shared_ptr<MemoryDisk> disk_;
  const Tier tier_;
};

std::unique_ptr<store::LowerTier> MakeMemoryLowerTier(std::shared_ptr<MemoryDisk> disk, Tier tier) {
  return std::make_unique<MemoryLowerTier>(std::move(disk), tier);
}

}  // namespace kvblend::test_support
