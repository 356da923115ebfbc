#include "engine/store/disk/disk_tier.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/disk/folder_scan.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {
namespace {

absl::Status NotOnDisk(const ChunkKey& key) {
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not on disk"));
}

}  // namespace

/// The right to change the files of one key. Waits until nobody has it; whoever has one waits for no other.
class DiskTier::Claim {
 public:
  Claim(DiskTier& tier, const ChunkKey& key) : tier_(tier), key_(key) {
    absl::MutexLock lock(&tier_.mutex_);
    const auto is_free = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !tier_.index_.IsClaimed(key_); };
    tier_.mutex_.Await(absl::Condition(&is_free));
    tier_.index_.Claim(key_);
  }
  ~Claim() {
    absl::MutexLock lock(&tier_.mutex_);
    tier_.index_.Unclaim(key_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  DiskTier& tier_;
  const ChunkKey key_;
};

// --- opening

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(Options options) {
  while (options.path.size() > 1 && options.path.back() == '/') options.path.pop_back();
  if (options.path.empty()) return absl::InvalidArgumentError("disk tier: path is empty");
  for (const auto& [name, value] :
       {std::pair("quota_bytes", options.quota_bytes), std::pair("min_free_bytes", options.min_free_bytes),
        std::pair("max_quarantined_files", options.max_quarantined_files)}) {
    if (value < 0) {
      return absl::InvalidArgumentError(absl::StrCat("disk tier: ", name, " is ", value, "; allowed: >= 0"));
    }
  }
  KVBLEND_RETURN_IF_ERROR(options.namespace_quotas.Check());
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options)));
  KVBLEND_RETURN_IF_ERROR(tier->Start());
  return tier;
}

DiskTier::DiskTier(Options options)
    : options_(std::move(options)),
      paths_{options_.path},
      fs_(*options_.fs),
      files_(fs_, paths_, options_.max_quarantined_files),
      read_health_("reading from", options_.path),
      write_health_("writing to", options_.path),
      held_files_(options_.max_held_files),
      index_({.quota_bytes = options_.quota_bytes, .namespace_quotas = options_.namespace_quotas}) {}

DiskTier::~DiskTier() = default;

absl::Status DiskTier::Start() {
  KVBLEND_RETURN_IF_ERROR(MakeFolders(fs_, options_.path));
  KVBLEND_ASSIGN_OR_RETURN(lock_, fs_.Lock(paths_.Lock(), absl::StrCat("process ", getpid())));
  KVBLEND_RETURN_IF_ERROR(MakeOwnFolders());
  // The folder may be from a process that died before syncing it. It can be synced only by whoever may read
  // the one above.
  const absl::Status above = fs_.SyncFolder(FolderAbove(options_.path));
  if (!above.ok() && !absl::IsPermissionDenied(above)) return above;
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> temporary, fs_.List(paths_.Temporary()));
  int64_t num_temporary = 0;
  for (const FolderItem& item : temporary) {
    if (!item.is_file || !internal::DiskPaths::IsTemporaryName(item.name)) continue;
    KVBLEND_RETURN_IF_ERROR(fs_.Unlink(absl::StrCat(paths_.Temporary(), "/", item.name)));
    ++num_temporary;
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> quarantined, fs_.List(paths_.Quarantine()));
  files_.SetQuarantinedFiles(std::count_if(quarantined.begin(), quarantined.end(), [](const auto& item) {
    return internal::DiskPaths::IsQuarantineName(item.name);
  }));
  KVBLEND_ASSIGN_OR_RETURN(const internal::ScanCounts found,
                           internal::ScanFolder(fs_, paths_, files_, read_health_, options_.num_scan_threads,
                                                [this](const EntryHeader& header, bool pinned) {
                                                  absl::MutexLock lock(&mutex_);
                                                  const Index::Slot slot = index_.Insert(
                                                      {.address = header.address,
                                                       .label = header.label,
                                                       .compute_cost_seconds = header.compute_cost_seconds,
                                                       .created = header.created,
                                                       .bytes = header.total_bytes()});
                                                  index_.SetPinned(slot, pinned);
                                                }));
  std::vector<Index::Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    stats_.removed_temporary_files = num_temporary;
    stats_.foreign_files = found.foreign_files;
    stats_.unsupported_entries = found.unsupported_entries;
    stats_.unreadable_entries = found.unreadable_entries;
    stats_.quarantined = found.damaged_entries;
    stats_.found_entries = index_.size();
    for (const auto& [key, pinned] : found.left_alone) left_alone_[key].pinned = pinned;
    index_.RequeueOldestFirst();
    victims = index_.EvictToNamespaceQuotas();
    for (Index::Victim& victim : index_.EvictToQuota()) victims.push_back(std::move(victim));
  }
  Delete(victims);
  reads_ = ReadQueue::Create(options_.reads);
  const DiskTierStats stats = Stats();
  spdlog::info(
      "chunk store on disk: {} holds {} entries ({} of {} bytes), read with {}; {} damaged, {} of a newer "
      "version, {} unreadable, {} foreign files, {} temporary files removed",
      options_.path, stats.entries, stats.bytes, stats.quota_bytes, stats.reader, stats.quarantined,
      stats.unsupported_entries, stats.unreadable_entries, stats.foreign_files,
      stats.removed_temporary_files);
  return absl::OkStatus();
}

absl::Status DiskTier::MakeOwnFolders() {
  for (const std::string& folder : {paths_.Entries(), paths_.Temporary(), paths_.Quarantine()}) {
    KVBLEND_RETURN_IF_ERROR(MakeFolders(fs_, folder));
  }
  return fs_.SyncFolder(options_.path);
}

// --- writing

absl::Status DiskTier::Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  KVBLEND_RETURN_IF_ERROR(CheckStorable("disk tier", address, kv, options.compute_cost_seconds));
  const Claim claim(*this, address.key);
  return PutClaimed(address, kv, options);
}

absl::Status DiskTier::PutClaimed(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  const ChunkKey& key = address.key;
  std::optional<Index::Slot> old;  // stays valid: only who has the claim erases the entry
  bool is_sound = false;
  {
    absl::MutexLock lock(&mutex_);
    old = index_.FindAny(key);
    is_sound = old.has_value() && !index_.at(*old).suspect && !index_.at(*old).unusable;
  }
  absl::Status status;
  if (is_sound) {
    status = files_.MakeFolderDurable(key);
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      ++stats_.duplicate_puts;
      return status;
    }
    is_sound = !absl::IsNotFound(status);  // or somebody has removed its folder
  }
  if (!is_sound) {
    const EntryHeader header = HeaderOf(address, kv, options, options_.now());
    KVBLEND_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeEntryHeader(header));
    const int64_t bytes = header.total_bytes();
    status = ReserveRoom(address.tenant_namespace, bytes);
    if (absl::IsResourceExhausted(status)) return status;
    const bool has_room = status.ok();
    if (status.ok()) status = MakeRoomOnDisk(bytes);
    if (status.ok()) status = files_.Write(key, header_bytes, kv, old.has_value());
    if (absl::IsNotFound(status)) {
      status = MakeFoldersAnew();
      if (status.ok()) status = files_.Write(key, header_bytes, kv, old.has_value());
    }
    absl::MutexLock lock(&mutex_);
    if (has_room) index_.EndReservation(address.tenant_namespace, bytes);
    if (status.ok()) {
      bool pinned = old.has_value() && index_.at(*old).pinned;
      if (old.has_value()) index_.Erase(*old);
      if (const auto replaced = left_alone_.find(key); replaced != left_alone_.end()) {
        pinned = replaced->second.pinned;  // as the next start would find it
        ForgetLeftAlone(key);
      }
      const Index::Slot slot = index_.Insert({.address = address,
                                              .label = header.label,
                                              .compute_cost_seconds = header.compute_cost_seconds,
                                              .created = header.created,
                                              .bytes = bytes,
                                              .frequency = options.frequency});
      index_.SetPinned(slot, pinned);
      ++stats_.puts;
      stats_.put_bytes += bytes;
    }
  }
  write_health_.Report(status);
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  ++stats_.put_failures;
  return AsUnavailable(status);
}

absl::Status DiskTier::AsUnavailable(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

absl::Status DiskTier::MakeFoldersAnew() {
  // Another disk, or none, may be mounted here now, or another server has made the folder its own.
  if (!lock_->InPlace()) {
    return absl::FailedPreconditionError(
        absl::StrCat(paths_.Lock(),
                     ": was removed or replaced, so the folder may be another one; allowed: the file that "
                     "this server locked at its start"));
  }
  files_.ForgetFolders();
  const absl::Status made = fs_.MakeFolder(paths_.Entries());
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  if (made.ok()) {
    absl::MutexLock lock(&mutex_);
    for (const ChunkKey& gone : index_.Keys()) {
      if (index_.IsClaimed(gone)) continue;
      index_.Erase(*index_.FindAny(gone));
      ++stats_.vanished;
    }
  }
  return MakeOwnFolders();
}

// --- reading

std::optional<DiskTier::Index::Slot> DiskTier::FindGeneration(const ChunkKey& key,
                                                              uint64_t generation) const {
  const std::optional<Index::Slot> slot = index_.Find(key);
  return slot.has_value() && index_.at(*slot).generation == generation ? slot : std::nullopt;
}

std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> DiskTier::OpenEntries(
    absl::Span<const ChunkKey> keys, absl::Time /*deadline*/) {
  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> entries;
  entries.reserve(keys.size());
  for (const ChunkKey& key : keys) entries.push_back(OpenEntry(key));
  return entries;
}

absl::StatusOr<std::shared_ptr<LowerTierEntry>> DiskTier::OpenEntry(const ChunkKey& key) {
  uint64_t generation = 0;
  bool pinned = false;
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = index_.Find(key);
    if (!slot.has_value()) return NotOnDisk(key);
    generation = index_.at(*slot).generation;
    pinned = index_.at(*slot).pinned;
  }
  absl::StatusOr<std::shared_ptr<LowerTierEntry>> entry = OpenFile(key, generation, pinned, /*goes=*/false);
  if (entry.ok()) {
    absl::MutexLock lock(&mutex_);
    ++stats_.opens;
    if (const auto slot = FindGeneration(key, generation)) index_.Touch(*slot, options_.now());
  } else if (absl::IsNotFound(entry.status())) {
    absl::MutexLock lock(&mutex_);
    ForgetVanished(key, generation);
  } else {
    ReportRead(key, generation, entry.status(), 0);
  }
  return entry;
}

void DiskTier::ForgetVanished(const ChunkKey& key, uint64_t generation) {
  const auto slot = FindGeneration(key, generation);
  if (!slot.has_value() || index_.IsClaimed(key)) return;
  index_.Erase(*slot);
  ++stats_.vanished;
}

absl::StatusOr<std::shared_ptr<LowerTierEntry>> DiskTier::OpenFile(const ChunkKey& key, uint64_t generation,
                                                                   bool pinned, bool goes) {
  KVBLEND_ASSIGN_OR_RETURN(internal::EntryFiles::OpenFile opened, files_.Open(key));
  std::shared_ptr<File> held =
      goes ? std::shared_ptr<File>(std::move(opened.file)) : held_files_.Hold(std::move(opened.file));
  return std::make_shared<internal::DiskEntry>(
      *reads_, std::move(held), [this, key, generation] { return OpenAgain(key, generation); },
      std::move(opened.header), pinned,
      [this, key, generation](const absl::Status& status, int64_t bytes) {
        ReportRead(key, generation, status, bytes);
      });
}

absl::StatusOr<std::shared_ptr<File>> DiskTier::OpenAgain(const ChunkKey& key, uint64_t generation) {
  {
    absl::MutexLock lock(&mutex_);
    if (!FindGeneration(key, generation).has_value()) return NotOnDisk(key);
  }
  return files_.OpenAgain(key);
}

void DiskTier::ReportRead(const ChunkKey& key, uint64_t generation, const absl::Status& status,
                          int64_t bytes) {
  if (absl::IsCancelled(status) || absl::IsResourceExhausted(status)) return;  // it was not begun
  if (absl::IsNotFound(status)) {
    absl::MutexLock lock(&mutex_);
    return ForgetVanished(key, generation);
  }
  const bool is_damaged = absl::IsDataLoss(status);
  if (!is_damaged) read_health_.Report(status);
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) {
      ++stats_.reads;
      stats_.read_bytes += bytes;
    } else {
      ++stats_.read_errors;
    }
    // A device's error says nothing of the bytes, which may be read another time; but should somebody have
    // the chunk's KV meanwhile, Put writes it anew. Until then another layer's success says nothing of this
    // one. That files or memory are short says nothing of the chunk at all.
    const bool tells = !status.ok() && !is_damaged && !absl::IsUnavailable(status);
    if (const auto slot = FindGeneration(key, generation); slot.has_value() && tells) {
      index_.SetSuspect(*slot);
    }
  }
  if (is_damaged) Quarantine(key, generation, status);
}

void DiskTier::Quarantine(const ChunkKey& key, uint64_t generation, const absl::Status& reason) {
  const Claim claim(*this, key);
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = FindGeneration(key, generation);
    if (!slot.has_value()) return;  // it was replaced or is gone
    LeaveAlone(*slot);
    ++stats_.quarantined;
  }
  spdlog::warn("chunk store on disk: damaged entry set aside: {}: {}", key.ToHex(), reason.ToString());
  const absl::Status status = files_.Quarantine(key);
  if (!status.ok()) WarnOfUndeleted(status);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    ForgetLeftAlone(key);
  } else {
    left_alone_[key].pinned = false;  // its pin is gone
    undeleted_.push_back(key);
  }
}

// --- for operators, and placement

std::vector<std::optional<ContentMatch>> DiskTier::FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                 absl::Time /*deadline*/) const {
  std::vector<std::optional<ContentMatch>> found(content_keys.size());
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < content_keys.size(); ++i) {
    const std::optional<Index::Slot> slot = index_.FindAnyAnchor(content_keys[i]);
    if (!slot.has_value()) continue;
    found[i] = ContentMatch{.key = index_.at(*slot).key, .isolated = index_.at(*slot).isolated};
  }
  return found;
}

std::optional<ChunkInfo> DiskTier::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<Index::Slot> slot = index_.Find(filter, key);
  if (!slot.has_value()) return std::nullopt;
  return index_.InfoOf(*slot);
}

bool DiskTier::Contains(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<Index::Slot> slot = index_.Find(key);
  return slot.has_value() && !index_.at(*slot).suspect;
}

void DiskTier::ForgetIfGone(const ChunkKey& key) {
  uint64_t generation = 0;
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = index_.Find(key);
    if (!slot.has_value()) return;
    generation = index_.at(*slot).generation;
  }
  if (!absl::IsNotFound(files_.LookFor(key))) return;
  absl::MutexLock lock(&mutex_);
  ForgetVanished(key, generation);
}

std::vector<ChunkInfo> DiskTier::List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                                      int64_t limit) const {
  absl::MutexLock lock(&mutex_);
  return index_.List(filter, after, limit);
}

absl::StatusOr<bool> DiskTier::Erase(NamespaceFilter filter, const ChunkKey& key) {
  const Claim claim(*this, key);
  return EraseClaimed(filter, absl::MakeConstSpan(&key, 1))[0];
}

std::vector<absl::StatusOr<bool>> DiskTier::EraseAll(NamespaceFilter filter,
                                                     absl::Span<const ChunkKey> keys) {
  std::vector<absl::StatusOr<bool>> erased(keys.size(), false);
  std::vector<ChunkKey> claimed;
  std::vector<size_t> claimed_at, busy_at;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool is_busy = index_.IsClaimed(keys[i]);
      (is_busy ? busy_at : claimed_at).push_back(i);
      if (is_busy) continue;
      index_.Claim(keys[i]);
      claimed.push_back(keys[i]);
    }
  }
  const std::vector<absl::StatusOr<bool>> outcomes = EraseClaimed(filter, claimed);
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < claimed.size(); ++i) {
      erased[claimed_at[i]] = outcomes[i];
      index_.Unclaim(claimed[i]);
    }
  }
  for (const size_t i : busy_at) erased[i] = Erase(filter, keys[i]);  // waits, and so has no claims by now
  return erased;
}

absl::Status DiskTier::SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) {
  const Claim claim(*this, key);
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = index_.Find(filter, key);
    if (!slot.has_value()) return NotOnDisk(key);
    if (index_.at(*slot).pinned == pinned) return absl::OkStatus();
    if (pinned) KVBLEND_RETURN_IF_ERROR(index_.CheckPinLimit(*slot));
  }
  const absl::Status status = files_.SetPinned(key, pinned);
  write_health_.Report(status);
  if (!status.ok()) return AsUnavailable(status);
  absl::MutexLock lock(&mutex_);
  // Still there: only who has the claim takes it out.
  index_.SetPinned(*index_.Find(key), pinned);
  return absl::OkStatus();
}

void DiskTier::SetUsable(const UsableEntries& usable) {
  Index::Unusable found;
  int64_t entries = 0, bytes = 0, pinned = 0;
  {
    absl::MutexLock lock(&mutex_);
    found = index_.MarkUnusable(usable);
    entries = index_.unusable_entries();
    bytes = index_.unusable_bytes();
    pinned = index_.unusable_pinned_entries();
  }
  if (entries == 0) return;
  spdlog::warn(
      "chunk store on disk: of what {} holds, {} entries of {} bytes are of no use to this server: {} of "
      "another model, {} in another format than {}, {} larger than memory takes with --chunk-store-bytes. They "
      "are not listed, and removed first when room is needed{}",
      options_.path, entries, bytes, found.other_model, found.other_format,
      std::string(kernels::Name(usable.format.encoding)), found.too_large,
      pinned == 0 ? ""
                  : absl::StrCat(", but for ", pinned,
                                 " that are pinned: `kvblend store gc` removes these with --pinned"));
}

DiskTierStats DiskTier::Stats() const {
  using State = internal::DiskHealth::State;
  const State writing = write_health_.state();
  absl::MutexLock lock(&mutex_);
  DiskTierStats stats = stats_;
  stats.entries = index_.size();
  stats.bytes = index_.bytes() + index_.held_bytes();
  stats.quota_bytes = options_.quota_bytes;
  stats.pinned_entries = index_.pinned_entries();
  stats.pinned_bytes = index_.pinned_bytes();
  stats.unusable_entries = index_.unusable_entries();
  stats.unusable_bytes = index_.unusable_bytes();
  stats.quarantined_files = files_.quarantined_files();
  stats.delete_failures = files_.delete_failures();
  stats.disk_full = writing == State::kFull;
  stats.write_failing = writing == State::kFailing;
  stats.read_failing = read_health_.state() != State::kWorking;
  stats.reader = reads_->name();
  return stats;
}

TierStats DiskTier::Report() const {
  const DiskTierStats stats = Stats();
  return {.tier = tier(),
          .failing = stats.disk_full || stats.write_failing || stats.read_failing,
          .values = FiguresOf<DiskTierStats>(stats, kDiskFigures)};
}

}  // namespace kvblend::store
