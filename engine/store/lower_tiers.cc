#include "engine/store/lower_tiers.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/names.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {
namespace {

/// Asks a tier for those keys together that is_wanted(index) says, and hands each answer to take(index,
/// answer). Does not ask for nothing.
template <typename Key, typename IsWanted, typename Ask, typename Take>
void AskTogether(absl::Span<const Key> keys, const IsWanted& is_wanted, const Ask& ask, const Take& take) {
  std::vector<size_t> wanted;
  std::vector<Key> asked;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!is_wanted(i)) continue;
    wanted.push_back(i);
    asked.push_back(keys[i]);
  }
  if (asked.empty()) return;
  auto answers = ask(asked);
  for (size_t i = 0; i < wanted.size(); ++i) take(wanted[i], std::move(answers[i]));
}

}  // namespace

LowerTiers::LowerTiers(std::vector<std::unique_ptr<LowerTier>> tiers, HostMemory& memory,
                       int64_t max_queued_write_bytes, std::function<absl::Time()> now)
    : memory_(memory), now_(std::move(now)) {
  for (std::unique_ptr<LowerTier>& tier : tiers) {
    use_interval_ = std::min(use_interval_, tier->lifetime() / kUsesPerLifetime);
    auto writes = std::make_unique<WriteBehind>(*tier, max_queued_write_bytes);
    levels_.push_back({std::move(tier), std::move(writes)});
  }
  for (size_t level = 0; level + 1 < levels_.size(); ++level) {
    levels_[level].tier->SetEvictionListener(
        [this, level](std::shared_ptr<LowerTierEntry> entry, int64_t frequency) {
          Demote(level, std::move(entry), frequency);
        });
  }
}

LowerTiers::~LowerTiers() {
  // From the top: what one tier evicts while it ends is the next one's to write.
  for (Level& level : levels_) {
    level.writes.reset();
    level.tier.reset();
  }
}

/// Reads all of an entry, and then queues it. Kept alive by its reads.
class LowerTiers::Demotion : public std::enable_shared_from_this<Demotion> {
 public:
  Demotion(LowerTiers& tiers, size_t level, std::shared_ptr<LowerTierEntry> entry,
           std::shared_ptr<ChunkKv> kv, int64_t frequency)
      : tiers_(tiers),
        erasures_(tiers.erasures_),
        level_(level),
        entry_(std::move(entry)),
        kv_(std::move(kv)),
        frequency_(frequency),
        left_(kv_->format().num_layers) {}
  ~Demotion() { --tiers_.demotions_; }

  void Start() {
    const int32_t num_layers = kv_->format().num_layers;
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      const auto id =
          entry_->ReadLayer(layer, kv_->MutableLayerBytes(layer), {{ReadFor::kNobody}, layer},
                            [self = shared_from_this()](const absl::Status& status) { self->Read(status); });
      if (!id.ok()) Read(id.status());
    }
  }

 private:
  void Read(const absl::Status& status) {
    if (!status.ok()) failed_ = true;
    if (--left_ > 0 || failed_) return;
    const EntryHeader& header = entry_->header();
    for (size_t below = level_ + 1; below < tiers_.levels_.size(); ++below) {
      const Level& level = tiers_.levels_[below];
      if (level.tier->Contains(header.address.key)) continue;
      erasures_.KeepUnlessErased(header.address.key, [&] {
        level.writes->Enqueue(header.address, kv_, /*pinned=*/false,
                              {.label = header.label,
                               .compute_cost_seconds = header.compute_cost_seconds,
                               .frequency = frequency_,
                               .created = header.created});
      });
    }
  }

  LowerTiers& tiers_;
  const Erasures::Watch erasures_;
  const size_t level_;
  const std::shared_ptr<LowerTierEntry> entry_;
  const std::shared_ptr<ChunkKv> kv_;
  const int64_t frequency_;
  std::atomic<int32_t> left_;  // layers
  std::atomic<bool> failed_{false};
};

void LowerTiers::Demote(size_t level, std::shared_ptr<LowerTierEntry> entry, int64_t frequency) {
  const EntryHeader& header = entry->header();
  const bool wanted = std::any_of(levels_.begin() + level + 1, levels_.end(), [&](const Level& below) {
    return !below.tier->Contains(header.address.key);
  });
  if (!wanted || header.address.num_tokens == 0) return;
  absl::StatusOr<std::unique_ptr<ChunkKv>> kv =
      ChunkKv::Allocate(header.address.format, header.address.num_tokens, memory_);
  if (!kv.ok()) return;
  if (++demotions_ > kMaxDemotions) {
    --demotions_;
    return;
  }
  std::make_shared<Demotion>(*this, level, std::move(entry), *std::move(kv), frequency)->Start();
}

bool LowerTiers::durable() const {
  return std::any_of(levels_.begin(), levels_.end(),
                     [](const Level& level) { return level.tier->durable(); });
}

// --- reading

bool LowerTiers::IsUnreadable(const ChunkKey& key, Tier tier) {
  absl::MutexLock lock(&mutex_);
  const auto found = unreadable_.find(key);
  if (found == unreadable_.end() || found->second.tier != tier) return false;
  const absl::Duration age = now_() - found->second.since;  // below zero: the clock was set back
  if (age >= absl::ZeroDuration() && age < kRetryUnreadable) return true;
  unreadable_.erase(found);
  return false;
}

void LowerTiers::MarkUnreadable(const ChunkKey& key, Tier tier) {
  constexpr size_t kMaxUnreadable = 10000;  // a tier that loses that many has other troubles
  absl::MutexLock lock(&mutex_);
  if (unreadable_.size() >= kMaxUnreadable) unreadable_.clear();
  unreadable_.insert_or_assign(key, Unreadable{tier, now_()});
}

std::vector<std::shared_ptr<LowerTierEntry>> LowerTiers::Open(absl::Span<const ChunkKey> keys,
                                                              absl::Time deadline) {
  std::vector<std::shared_ptr<LowerTierEntry>> opened(keys.size());
  for (const Level& level : levels_) {
    AskTogether(
        keys, [&](size_t i) { return opened[i] == nullptr && !IsUnreadable(keys[i], level.tier->tier()); },
        [&](const std::vector<ChunkKey>& asked) { return level.tier->OpenEntries(asked, deadline); },
        [&](size_t i, absl::StatusOr<std::shared_ptr<LowerTierEntry>> entry) {
          if (entry.ok()) opened[i] = *std::move(entry);
        });
  }
  return opened;
}

std::vector<std::optional<ContentMatch>> LowerTiers::FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                   absl::Time deadline) const {
  std::vector<std::optional<ContentMatch>> matches(content_keys.size());
  for (const Level& level : levels_) {
    AskTogether(
        content_keys, [&](size_t i) { return !matches[i].has_value(); },
        [&](const std::vector<ContentKey>& asked) { return level.tier->FindAnyAnchor(asked, deadline); },
        [&](size_t i, std::optional<ContentMatch> match) { matches[i] = std::move(match); });
  }
  return matches;
}

// --- writing

void LowerTiers::Write(const ChunkAddress& address, const std::shared_ptr<const ChunkKv>& kv, bool pinned,
                       const LowerTier::PutOptions& options) {
  for (const Level& level : levels_) {
    if (level.tier->Contains(address.key)) continue;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = unreadable_.find(address.key);
      if (found != unreadable_.end() && found->second.tier == level.tier->tier()) unreadable_.erase(found);
    }
    level.writes->Enqueue(address, kv, pinned && level.tier->durable(), options);
  }
}

void LowerTiers::WriteAndPin(const ChunkAddress& address, const std::shared_ptr<const ChunkKv>& kv,
                             const LowerTier::PutOptions& options) {
  Write(address, kv, /*pinned=*/true, options);
  QueuePin(address, true);  // also what was there, or on its way
}

void LowerTiers::ForgetIfGone(const ChunkKey& key) {
  for (const Level& level : levels_) {
    if (level.tier->durable()) level.tier->ForgetIfGone(key);
  }
}

std::vector<bool> LowerTiers::Lack(absl::Span<const ChunkKey> keys, const KvFormat& format) {
  std::vector<bool> lacking(keys.size());
  for (const Level& level : levels_) {
    if (level.tier->durable()) continue;
    AskTogether(
        keys, [&](size_t i) { return !lacking[i]; },
        [&](const std::vector<ChunkKey>& asked) { return level.tier->Lack(asked, format); },
        [&](size_t i, bool lacks) { lacking[i] = lacks; });
  }
  return lacking;
}

void LowerTiers::QueuePin(const ChunkAddress& address, bool pinned) {
  for (const Level& level : levels_) {
    if (!level.tier->durable() || level.writes->AmendPin(address.key, pinned)) continue;
    // In this order: what was on its way before is there now.
    if (level.tier->Contains(address.key)) level.writes->EnqueuePin(address, pinned);
  }
}

void LowerTiers::AmendPin(const ChunkKey& key, bool pinned) {
  for (const Level& level : levels_) {
    if (level.tier->durable()) level.writes->AmendPin(key, pinned);
  }
}

absl::flat_hash_map<ChunkKey, bool> LowerTiers::QueuedPins() const {
  for (const Level& level : levels_) {
    if (level.tier->durable()) return level.writes->QueuedPins();
  }
  return {};
}

void LowerTiers::QueueUse(const ChunkAddress& address) {
  for (const Level& level : levels_) {
    if (level.tier->lifetime() < absl::InfiniteDuration()) level.writes->EnqueueUse(address);
  }
}

void LowerTiers::CancelWrites(absl::FunctionRef<bool(const ChunkAddress&)> unwanted) {
  for (const Level& level : levels_) level.writes->Cancel(unwanted);
}

absl::Status LowerTiers::WaitUntilWritten(const ChunkKey& key, absl::Time deadline) {
  for (const Level& level : levels_) {
    const absl::Status status = level.writes->WaitFor(key, deadline);
    if (absl::IsDeadlineExceeded(status)) return status;
  }
  return absl::OkStatus();
}

absl::Status LowerTiers::WaitUntilDurable(const ChunkKey& key, absl::Time deadline) {
  for (const Level& level : levels_) {
    if (!level.tier->durable()) continue;
    const absl::Status written = level.writes->WaitFor(key, deadline);
    if (absl::IsDeadlineExceeded(written)) return written;
    // If writing failed, that may have been a pin, or an earlier write.
    if (level.tier->Contains(key)) return absl::OkStatus();
    if (!written.ok()) return written;
    return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " was evicted or deleted meanwhile"));
  }
  return absl::FailedPreconditionError("the chunk store has no tier that outlives the process");
}

absl::Status LowerTiers::FlushWrites(absl::Time deadline) {
  absl::Status first;
  for (const Level& level : levels_) first.Update(level.writes->Flush(deadline));
  return first;
}

std::vector<TierStats> LowerTiers::Report() const {
  std::vector<TierStats> reports;
  for (const Level& level : levels_) reports.push_back(level.tier->Report());
  return reports;
}

ReplicaBoard* LowerTiers::replica_board() const {
  for (const Level& level : levels_) {
    if (ReplicaBoard* board = level.tier->replica_board(); board != nullptr) return board;
  }
  return nullptr;
}

WriteBehind::Stats LowerTiers::write_stats() const {
  WriteBehind::Stats sum;
  for (const Level& level : levels_) {
    const WriteBehind::Stats stats = level.writes->stats();
    sum.queued_entries += stats.queued_entries;
    sum.queued_bytes += stats.queued_bytes;
    sum.written += stats.written;
    sum.dropped += stats.dropped;
    sum.failed += stats.failed;
  }
  return sum;
}

// --- for operators

std::optional<ChunkInfo> LowerTiers::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  return StatAll(filter, absl::MakeConstSpan(&key, 1))[0];
}

std::vector<std::optional<ChunkInfo>> LowerTiers::StatAll(NamespaceFilter filter,
                                                          absl::Span<const ChunkKey> keys) const {
  std::vector<std::optional<ChunkInfo>> infos(keys.size());
  for (const Level& level : levels_) {
    AskTogether(
        keys, [&](size_t i) { return !infos[i].has_value(); },
        [&](const std::vector<ChunkKey>& asked) { return level.tier->StatAll(filter, asked); },
        [&](size_t i, std::optional<ChunkInfo> info) { infos[i] = std::move(info); });
  }
  return infos;
}

std::vector<ChunkInfo> LowerTiers::List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                                        int64_t limit, std::vector<ChunkInfo> host) const {
  std::vector<ChunkInfo> listed = std::move(host);
  for (const Level& level : levels_) {
    const std::vector<ChunkInfo> more = level.tier->List(filter, after, limit);
    std::vector<ChunkInfo> merged;
    std::set_union(listed.begin(), listed.end(), more.begin(), more.end(), std::back_inserter(merged),
                   [](const ChunkInfo& a, const ChunkInfo& b) {
                     return std::tie(a.tenant_namespace, a.key) < std::tie(b.tenant_namespace, b.key);
                   });
    listed = std::move(merged);
  }
  if (static_cast<int64_t>(listed.size()) > limit) {
    listed.erase(listed.begin() + limit, listed.end());
  }
  return listed;
}

bool LowerTiers::WarnsOfErasure() {
  absl::MutexLock lock(&mutex_);
  return warn_erasure_.IsDue();
}

std::vector<absl::StatusOr<bool>> LowerTiers::EraseAll(NamespaceFilter filter,
                                                       absl::Span<const ChunkKey> keys) {
  std::vector<absl::StatusOr<bool>> outcomes(keys.size(), false);
  for (const Level& level : levels_) {
    const std::vector<absl::StatusOr<bool>> erased = level.tier->EraseAll(filter, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (erased[i].ok()) {
        if (outcomes[i].ok()) *outcomes[i] |= *erased[i];
        continue;
      }
      // No lookup of this process finds it any more; one after a restart, or of another server, might.
      if (WarnsOfErasure()) {
        spdlog::warn("chunk {} could not be deleted everywhere: {} (said once a minute at most)",
                     keys[i].ToHex(), std::string(erased[i].status().message()));
      }
      if (!outcomes[i].ok()) continue;
      outcomes[i] = absl::UnavailableError(
          absl::StrCat(std::string(Name(level.tier->tier())), ": ", erased[i].status().message()));
    }
  }
  return outcomes;
}

absl::Status LowerTiers::SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) {
  absl::Status status = absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not in the store"));
  for (const Level& level : levels_) {
    absl::Status here = level.tier->SetPinned(filter, key, pinned);
    if (absl::IsNotFound(here)) continue;
    if (absl::IsNotFound(status)) status = absl::OkStatus();
    status.Update(std::move(here));
  }
  return status;
}

void LowerTiers::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  for (const Level& level : levels_) level.tier->LimitNamespaces(bytes);
}

std::optional<int64_t> LowerTiers::RoomOf(const std::string& tenant_namespace) const {
  for (const Level& level : levels_) {
    if (level.tier->durable()) return level.tier->RoomOf(tenant_namespace);
  }
  return std::nullopt;
}

}  // namespace kvblend::store
