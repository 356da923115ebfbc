#include "engine/store/disk/disk_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "engine/api/namespace_limit.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend::store::internal {

DiskIndex::DiskIndex(Limits limits)
    : limits_(std::move(limits)),
      by_key_(0, KeyHash{this}, KeyEqual{this}),
      by_namespace_(NamespaceLess{this}),
      by_content_(ContentLess{this}),
      eviction_queue_(limits_.namespace_quotas.limited()),
      unusable_queue_(limits_.namespace_quotas.limited()) {}

DiskIndex::NamespaceLess::Place DiskIndex::NamespaceLess::PlaceOf(Slot slot) const {
  const Entry& entry = index->at(slot);
  return {*entry.tenant_namespace, entry.key};
}

bool DiskIndex::ContentLess::operator()(Slot a, Slot b) const {
  const Entry& x = index->at(a);
  const Entry& y = index->at(b);
  return std::tie(x.content_key, x.isolated, x.key) < std::tie(y.content_key, y.isolated, y.key);
}

uint16_t DiskIndex::KindOf(const ChunkAddress& address) {
  constexpr size_t kMaxKinds = 1000;  // who has more has made them up: the last stands for the others
  const Kind kind{address.model_fingerprint, address.format};
  const auto known = std::find(kinds_.begin(), kinds_.end(), kind);
  if (known != kinds_.end()) return static_cast<uint16_t>(known - kinds_.begin());
  if (kinds_.size() < kMaxKinds) kinds_.push_back(kind);
  return static_cast<uint16_t>(kinds_.size() - 1);
}

DiskIndex::Slot DiskIndex::Insert(const NewEntry& fresh) {
  if (free_slots_.empty()) {
    const auto first = static_cast<Slot>(blocks_.size()) * kBlockSlots;
    blocks_.push_back(std::make_unique<Entry[]>(kBlockSlots));
    free_slots_.reserve(kBlockSlots);
    for (Slot i = kBlockSlots; i > 0; --i) free_slots_.push_back(first + i - 1);
  }
  const Slot slot = free_slots_.back();
  free_slots_.pop_back();
  Entry& entry = Mutable(slot);
  entry.key = fresh.address.key;
  entry.content_key = fresh.address.content_key;
  entry.anchor_hash = anchors_.Acquire(fresh.address.anchor_hash);
  entry.tenant_namespace = namespaces_.Acquire(fresh.address.tenant_namespace);
  entry.label_bytes =
      static_cast<uint16_t>(std::min<size_t>(fresh.label.size(), std::numeric_limits<uint16_t>::max()));
  if (entry.label_bytes > 0) {
    entry.label = std::make_unique<char[]>(entry.label_bytes);
    std::memcpy(entry.label.get(), fresh.label.data(), entry.label_bytes);
  }
  entry.bytes = fresh.bytes;
  // An entry whose cost cannot be compared would never be evicted: it counts as worthless.
  const double cost = fresh.compute_cost_seconds;
  entry.compute_cost_seconds = std::isfinite(cost) && cost > 0 ? cost : 0;
  entry.created_micros = absl::ToUnixMicros(fresh.created);
  entry.last_used_micros = entry.created_micros;
  entry.generation = next_generation_++;
  entry.num_tokens = fresh.address.num_tokens;
  entry.kind = fresh.kind.has_value() ? *fresh.kind : KindOf(fresh.address);
  entry.earlier_hits =
      static_cast<uint8_t>(std::clamp<int64_t>(fresh.frequency - 1, 0, std::numeric_limits<uint8_t>::max()));
  entry.isolated = MatchOf(fresh.address).isolated;
  entry.busy = IsClaimed(entry.key);
  by_key_.insert(slot);
  by_namespace_.insert(slot);
  by_content_.insert(slot);
  bytes_ += entry.bytes;
  namespace_bytes_[entry.tenant_namespace] += entry.bytes;
  UpdateEvictability(slot);
  return slot;
}

void DiskIndex::Erase(Slot slot) {
  SetPinned(slot, false);
  SetBusy(slot, true);  // takes it out of the eviction queue
  SetStuck(slot, false);
  by_key_.erase(slot);
  by_namespace_.erase(slot);
  by_content_.erase(slot);
  Entry& entry = Mutable(slot);
  if (entry.unusable) CountUnusable(entry, -1);
  bytes_ -= entry.bytes;
  const auto namespace_bytes = namespace_bytes_.find(entry.tenant_namespace);
  namespace_bytes->second -= entry.bytes;
  if (namespace_bytes->second == 0) namespace_bytes_.erase(namespace_bytes);
  anchors_.Release(entry.anchor_hash);
  namespaces_.Release(entry.tenant_namespace);
  entry = Entry();
  free_slots_.push_back(slot);
}

std::optional<DiskIndex::Slot> DiskIndex::FindAny(const ChunkKey& key) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  return *found;
}

std::optional<DiskIndex::Slot> DiskIndex::FindAny(NamespaceFilter filter, const ChunkKey& key) const {
  const std::optional<Slot> slot = FindAny(key);
  if (slot.has_value() && filter.has_value() && *at(*slot).tenant_namespace != *filter) return std::nullopt;
  return slot;
}

std::optional<DiskIndex::Slot> DiskIndex::Find(const ChunkKey& key) const {
  return Find(kAllNamespaces, key);
}

std::optional<DiskIndex::Slot> DiskIndex::Find(NamespaceFilter filter, const ChunkKey& key) const {
  const std::optional<Slot> slot = FindAny(filter, key);
  return slot.has_value() && at(*slot).unusable ? std::nullopt : slot;
}

std::vector<ChunkKey> DiskIndex::Keys() const {
  std::vector<ChunkKey> keys;
  keys.reserve(by_key_.size());
  for (const Slot slot : by_key_) keys.push_back(at(slot).key);
  return keys;
}

std::optional<DiskIndex::Slot> DiskIndex::FindAnyAnchor(const ContentKey& content_key) const {
  const auto best = by_content_.lower_bound(content_key);
  if (best == by_content_.end() || at(*best).content_key != content_key) return std::nullopt;
  return *best;
}

ChunkInfo DiskIndex::InfoOf(Slot slot) const {
  const Entry& entry = at(slot);
  return {.key = entry.key,
          .content_key = entry.content_key,
          .anchor_hash = *entry.anchor_hash,
          .tenant_namespace = *entry.tenant_namespace,
          .label = std::string(entry.label.get(), entry.label_bytes),
          .num_tokens = entry.num_tokens,
          .bytes = entry.bytes,
          .tier = Tier::kDisk,
          .pinned = entry.pinned,
          .hits = entry.hits,
          .compute_cost_seconds = entry.compute_cost_seconds,
          .created = absl::FromUnixMicros(entry.created_micros),
          .last_used = absl::FromUnixMicros(entry.last_used_micros)};
}

std::vector<ChunkInfo> DiskIndex::List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                                       int64_t limit) const {
  auto it = after.has_value()
                ? by_namespace_.upper_bound(NamespaceLess::Place(after->first, after->second))
                : by_namespace_.lower_bound(NamespaceLess::Place(filter.value_or(""), ChunkKey()));
  std::vector<ChunkInfo> infos;
  for (; it != by_namespace_.end() && static_cast<int64_t>(infos.size()) < limit; ++it) {
    if (filter.has_value() && *at(*it).tenant_namespace != *filter) break;
    infos.push_back(InfoOf(*it));
  }
  return infos;
}

void DiskIndex::Touch(Slot slot, absl::Time now) {
  Entry& entry = Mutable(slot);
  if (entry.hits < std::numeric_limits<uint32_t>::max()) ++entry.hits;
  entry.last_used_micros = absl::ToUnixMicros(now);
  const bool was_busy = entry.busy;
  entry.busy = true;
  UpdateEvictability(slot);  // out of the queue, and
  entry.busy = was_busy;
  UpdateEvictability(slot);  // back into it, further behind
}

void DiskIndex::SetPinned(Slot slot, bool pinned) {
  Entry& entry = Mutable(slot);
  if (entry.pinned == pinned) return;
  entry.pinned = pinned;
  CountPin(entry, pinned ? 1 : -1);
  UpdateEvictability(slot);
}

void DiskIndex::CountPin(const Entry& entry, int64_t sign) {
  if (entry.unusable) {
    unusable_pinned_entries_ += sign;
    return;
  }
  pinned_entries_ += sign;
  pinned_bytes_ += sign * entry.bytes;
}

void DiskIndex::CountUnusable(const Entry& entry, int64_t sign) {
  unusable_entries_ += sign;
  unusable_bytes_ += sign * entry.bytes;
}

DiskIndex::Unusable DiskIndex::MarkUnusable(const UsableEntries& usable) {
  Unusable found;
  for (const Slot slot : by_key_) {
    const Entry& entry = at(slot);
    const Kind& kind = kinds_[entry.kind];
    const absl::StatusOr<int64_t> kv_bytes = ChunkKv::SizeBytes(kind.format, entry.num_tokens);
    const bool other_model = kind.model_fingerprint != usable.model_fingerprint;
    const bool other_format = !other_model && kind.format != usable.format;
    const bool too_large =
        !other_model && !other_format && (!kv_bytes.ok() || *kv_bytes > usable.max_kv_bytes);
    if (entry.unusable || (!other_model && !other_format && !too_large)) continue;
    ++(other_model ? found.other_model : other_format ? found.other_format : found.too_large);
    MakeUnusable(slot);
  }
  return found;
}

void DiskIndex::MakeUnusable(Slot slot) {
  Entry& entry = Mutable(slot);
  by_namespace_.erase(slot);
  by_content_.erase(slot);
  const bool was_busy = entry.busy;
  const bool was_pinned = entry.pinned;
  SetPinned(slot, false);
  SetBusy(slot, true);  // out of one queue, and
  entry.unusable = true;
  CountUnusable(entry, 1);
  SetPinned(slot, was_pinned);
  SetBusy(slot, was_busy);  // into the other
}

absl::Status DiskIndex::CheckPinLimit(Slot slot) const {
  const int64_t bytes = at(slot).bytes, allowed = limits_.quota_bytes / 2;
  if (bytes <= allowed - pinned_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("disk tier: pinning needs ", bytes, " bytes; ",
                                                   pinned_bytes_, " of at most ", allowed,
                                                   " bytes (half of the quota) are pinned"));
}

void DiskIndex::SetBusy(Slot slot, bool busy) {
  Mutable(slot).busy = busy;
  UpdateEvictability(slot);
}

void DiskIndex::Claim(const ChunkKey& key) {
  claimed_.insert(key);
  if (const std::optional<Slot> slot = FindAny(key)) SetBusy(*slot, true);
}

void DiskIndex::Unclaim(const ChunkKey& key) {
  claimed_.erase(key);
  if (const std::optional<Slot> slot = FindAny(key)) SetBusy(*slot, false);
}

// --- room

void DiskIndex::GiveUp(std::optional<EvictionQueue::EntryId> id, std::vector<Victim>& victims) {
  const auto slot = static_cast<Slot>(*id);
  Entry& entry = Mutable(slot);
  entry.evictable = false;
  victims.push_back({.info = InfoOf(slot),
                     .generation = entry.generation,
                     .frequency = FrequencyOf(entry),
                     .suspect = entry.suspect,
                     .was_stuck = entry.was_stuck,
                     .kind = entry.kind,
                     .unusable = entry.unusable});
  Erase(slot);
  claimed_.insert(victims.back().info.key);  // nobody has it: claimed entries are not in the queue
}

void DiskIndex::PutBack(const Victim& victim, bool stuck) {
  const ChunkInfo& info = victim.info;
  ChunkAddress address;
  address.key = info.key;
  address.content_key = info.content_key;
  address.anchor_hash = info.anchor_hash;
  address.tenant_namespace = info.tenant_namespace;
  address.num_tokens = info.num_tokens;
  const Slot slot = Insert({.address = address,
                            .label = info.label,
                            .compute_cost_seconds = info.compute_cost_seconds,
                            .created = info.created,
                            .bytes = info.bytes,
                            .frequency = victim.frequency - info.hits,
                            .kind = victim.kind});
  Entry& entry = Mutable(slot);
  entry.hits = static_cast<uint32_t>(info.hits);
  entry.last_used_micros = absl::ToUnixMicros(info.last_used);
  entry.suspect = victim.suspect;
  entry.was_stuck = victim.was_stuck;
  if (victim.unusable) MakeUnusable(slot);
  if (stuck) SetStuck(slot, true);
}

void DiskIndex::SetStuck(Slot slot, bool stuck) {
  Entry& entry = Mutable(slot);
  if (entry.stuck == stuck) return;
  entry.stuck = stuck;
  entry.was_stuck = true;
  if (stuck) {
    stuck_.emplace(entry.generation, slot);
  } else {
    stuck_.erase({entry.generation, slot});
  }
  UpdateEvictability(slot);
}

void DiskIndex::RetryStuck(int64_t max_entries) {
  for (; max_entries > 0 && !stuck_.empty(); --max_entries) SetStuck(stuck_.begin()->second, false);
}

absl::StatusOr<std::vector<DiskIndex::Victim>> DiskIndex::Reserve(const std::string& tenant_namespace,
                                                                  int64_t bytes) {
  const int64_t kept = bytes_ - idle_bytes() + reserved_bytes_;
  if (bytes > limits_.quota_bytes - kept) {
    return absl::ResourceExhaustedError(absl::StrCat("disk tier: ", bytes, " bytes needed; of the quota of ",
                                                     limits_.quota_bytes, " bytes ", kept, " are pinned (",
                                                     pinned_bytes_, "), being written or not to be removed"));
  }
  std::vector<Victim> victims;
  if (limits_.namespace_quotas.limited()) {
    const int64_t quota = limits_.namespace_quotas.BytesOf(tenant_namespace, limits_.quota_bytes);
    const int64_t kept_of_namespace = BytesOf(tenant_namespace) - IdleBytesOf(tenant_namespace);
    if (bytes > quota - kept_of_namespace) {
      return WithNamespaceLimit(
          absl::ResourceExhaustedError(absl::StrCat(
              "disk tier: ", bytes, " bytes needed; ",
              limits_.namespace_quotas.Describe(tenant_namespace, limits_.quota_bytes), ", of which ",
              kept_of_namespace, " are pinned, being written or not to be removed")),
          tenant_namespace);
    }
    while (bytes > quota - BytesOf(tenant_namespace)) GiveUp(PopIdleOf(tenant_namespace), victims);
  }
  while (bytes_ + reserved_bytes_ > limits_.quota_bytes - bytes) GiveUp(PopIdle(), victims);
  reserved_bytes_ += bytes;
  reserved_of_namespace_[tenant_namespace] += bytes;
  return victims;
}

int64_t DiskIndex::IdleBytesOf(const std::string& tenant_namespace) const {
  const std::string* name = namespaces_.Find(tenant_namespace);
  return eviction_queue_.bytes_of(name) + unusable_queue_.bytes_of(name);
}

std::optional<EvictionQueue::EntryId> DiskIndex::PopIdle() {
  return unusable_queue_.size() > 0 ? unusable_queue_.Pop() : eviction_queue_.Pop();
}

std::optional<EvictionQueue::EntryId> DiskIndex::PopIdleOf(const std::string& tenant_namespace) {
  const std::string* name = namespaces_.Find(tenant_namespace);
  return unusable_queue_.bytes_of(name) > 0 ? unusable_queue_.PopOf(name) : eviction_queue_.PopOf(name);
}

void DiskIndex::HoldRoom(const std::string& tenant_namespace, int64_t bytes) {
  held_bytes_ += bytes;
  reserved_bytes_ += bytes;
  reserved_of_namespace_[tenant_namespace] += bytes;
}

void DiskIndex::EndHold(const std::string& tenant_namespace, int64_t bytes) {
  held_bytes_ -= bytes;
  EndReservation(tenant_namespace, bytes);
}

void DiskIndex::EndReservation(const std::string& tenant_namespace, int64_t bytes) {
  reserved_bytes_ -= bytes;
  const auto reserved = reserved_of_namespace_.find(tenant_namespace);
  reserved->second -= bytes;
  if (reserved->second == 0) reserved_of_namespace_.erase(reserved);
}

int64_t DiskIndex::BytesOf(const std::string& tenant_namespace) const {
  const auto stored = namespace_bytes_.find(namespaces_.Find(tenant_namespace));
  const auto reserved = reserved_of_namespace_.find(tenant_namespace);
  return (stored == namespace_bytes_.end() ? 0 : stored->second) +
         (reserved == reserved_of_namespace_.end() ? 0 : reserved->second);
}

std::vector<DiskIndex::Victim> DiskIndex::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  limits_.namespace_quotas.bytes = bytes;
  if (!limits_.namespace_quotas.limited()) return {};
  eviction_queue_.CountOwners();
  unusable_queue_.CountOwners();
  return EvictToNamespaceQuotas();
}

std::vector<DiskIndex::Victim> DiskIndex::EvictToNamespaceQuotas() {
  std::vector<Victim> victims;
  if (!limits_.namespace_quotas.limited()) return victims;
  // Copies: a namespace's name goes with its last entry.
  std::vector<std::string> names;
  names.reserve(namespace_bytes_.size());
  for (const auto& [name, stored] : namespace_bytes_) names.push_back(*name);
  for (const std::string& name : names) {
    const int64_t quota = limits_.namespace_quotas.BytesOf(name, limits_.quota_bytes);
    while (BytesOf(name) > quota && IdleBytesOf(name) > 0) GiveUp(PopIdleOf(name), victims);
  }
  return victims;
}

std::vector<DiskIndex::Victim> DiskIndex::EvictToQuota() {
  std::vector<Victim> victims;
  while (bytes_ > limits_.quota_bytes && idle_entries() > 0) GiveUp(PopIdle(), victims);
  return victims;
}

std::vector<DiskIndex::Victim> DiskIndex::EvictAtLeast(int64_t bytes) {
  std::vector<Victim> victims;
  if (bytes > idle_bytes()) return victims;
  for (int64_t freed = 0; freed < bytes; freed += victims.back().info.bytes) GiveUp(PopIdle(), victims);
  return victims;
}

void DiskIndex::RequeueOldestFirst() {
  std::vector<Slot> slots(by_key_.begin(), by_key_.end());
  std::sort(slots.begin(), slots.end(), [this](Slot a, Slot b) {
    return std::tie(at(a).created_micros, at(a).key) < std::tie(at(b).created_micros, at(b).key);
  });
  for (const Slot slot : slots) SetBusy(slot, true);
  for (const Slot slot : slots) SetBusy(slot, false);
}

void DiskIndex::UpdateEvictability(Slot slot) {
  Entry& entry = Mutable(slot);
  const bool evictable = !entry.pinned && !entry.busy && !entry.stuck;
  if (evictable == entry.evictable) return;
  if (evictable) {
    const EvictionQueue::Ticket ticket = QueueOf(entry).Add(
        slot, FrequencyOf(entry), entry.compute_cost_seconds, entry.bytes, entry.tenant_namespace);
    entry.on_probation = ticket.on_probation;
    entry.ticket_priority = ticket.priority;
    entry.ticket_sequence = ticket.sequence;
  } else {
    QueueOf(entry).Remove({.priority = entry.ticket_priority,
                           .sequence = entry.ticket_sequence,
                           .on_probation = entry.on_probation,
                           .id = slot,
                           .bytes = entry.bytes,
                           .owner = entry.tenant_namespace});
  }
  entry.evictable = evictable;
}

}  // namespace kvblend::store::internal
