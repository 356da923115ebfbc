#include "engine/store/redis/redis_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {
namespace {

constexpr size_t kMaxKnownKeys = 100'000;
constexpr size_t kMaxPendingErasures = 100'000;
/// So long an entry is believed to be in Redis, unless a lookup misses it or another one that is believed to
/// be.
constexpr absl::Duration kRemember = absl::Minutes(10);

absl::Status BadOption(std::string_view name, const std::string& value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("Redis tier: ", std::string(name), " is ", value, "; allowed: ", std::string(allowed)));
}

absl::Status Check(const RedisTier::Options& options) {
  if (options.nodes.empty()) return BadOption("nodes", "empty", "at least one");
  if (options.ttl < absl::ZeroDuration() || options.ttl > absl::Hours(24 * 3650) ||
      (options.ttl > absl::ZeroDuration() && options.ttl < absl::Seconds(1))) {
    return BadOption("ttl", absl::FormatDuration(options.ttl), "0 (for ever), or 1 s to 10 years");
  }
  if (options.budget <= absl::ZeroDuration() || options.budget > absl::Minutes(1)) {
    return BadOption("budget", absl::FormatDuration(options.budget), "more than 0, at most 1 minute");
  }
  // Redis takes no larger values, unless told to.
  if (options.max_value_bytes < 1 || options.max_value_bytes > int64_t{512} << 20) {
    return BadOption("max_value_bytes", absl::StrCat(options.max_value_bytes), "1 to 512 MiB");
  }
  if (options.connections_per_node < 1 || options.connections_per_node > 64) {
    return BadOption("connections_per_node", absl::StrCat(options.connections_per_node), "1 to 64");
  }
  if (!options.user.empty() && options.password.empty()) {
    return BadOption("password", "empty", "a password, with a user");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisTier>> RedisTier::Create(Options options) {
  KVBLEND_RETURN_IF_ERROR(Check(options));
  std::unique_ptr<redis::Transport> transport =
      options.make_transport ? options.make_transport() : redis::MakeSocketTransport();
  if (options.tls.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(transport, redis::MakeTlsTransport(*options.tls, std::move(transport)));
  }
  redis::ClusterOptions cluster;
  cluster.seeds = options.nodes;
  cluster.node.user = options.user;
  cluster.node.password = options.password;
  cluster.node.read_connections = options.connections_per_node;
  cluster.node.read_stall = options.budget;
  cluster.node.write_stall = options.write_timeout;
  cluster.node.connect_timeout = options.connect_timeout;
  cluster.node.ping_interval = options.ping_interval;
  cluster.node.breaker = options.breaker;
  cluster.node.now = options.now;
  cluster.min_refresh_interval = options.min_refresh_interval;
  const absl::Time connected_by = absl::Now() + options.connect_timeout;
  std::unique_ptr<RedisTier> tier(new RedisTier(
      std::move(options), std::make_unique<redis::ClusterClient>(std::move(cluster), std::move(transport))));
  tier->AwaitAllWorking(connected_by);
  return tier;
}

RedisTier::RedisTier(Options options, std::unique_ptr<redis::ClusterClient> cluster)
    : options_(std::move(options)),
      ttl_seconds_(absl::ToInt64Seconds(options_.ttl)),
      known_(kMaxKnownKeys),
      pending_erasures_(kMaxPendingErasures),
      content_(*cluster, ttl_seconds_),
      writer_(*cluster, ttl_seconds_),
      board_(*cluster, options_.max_value_bytes),
      cluster_(std::move(cluster)),
      eraser_([this] { RunErasures(); }) {}

RedisTier::~RedisTier() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  eraser_.join();
}

// --- what is known here

void RedisTier::Remember(const ChunkKey& key, absl::Duration left, uint64_t period) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = options_.now();
  known_.Insert(key, {now + std::min(left * 0.9, kRemember), now + left, period});
}

void RedisTier::Forget(const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  known_.Erase(key);
}

void RedisTier::Miss(const ChunkKey& key, uint64_t period) {
  absl::MutexLock lock(&mutex_);
  if (IsKnown(key, period)) {
    known_.Clear();
  } else {
    known_.Erase(key);
  }
}

bool RedisTier::IsKnown(const ChunkKey& key, uint64_t period) const {
  const Known* known = known_.Find(key);
  return known != nullptr && known->until > options_.now() && known->period == period;
}

bool RedisTier::Contains(const ChunkKey& key) const {
  const uint64_t period = PeriodOf(key);
  absl::MutexLock lock(&mutex_);
  return IsKnown(key, period);
}

bool RedisTier::IsToBeErased(const ChunkAddress& address) const {
  const std::optional<std::string>* wanted = pending_erasures_.Find(address.key);
  return wanted != nullptr && address.IsIn(*wanted);
}

// --- writing

absl::Status RedisTier::Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  KVBLEND_RETURN_IF_ERROR(CheckStorable("Redis tier", address, kv, options.compute_cost_seconds));
  const int64_t largest = std::max(kv.k_section_bytes(), kv.layer_bytes() - kv.k_section_bytes());
  if (largest > options_.max_value_bytes) {
    absl::MutexLock lock(&mutex_);
    ++stats_.too_large_puts;
    return absl::ResourceExhaustedError(
        absl::StrCat("Redis tier: a section is ", largest, " bytes; allowed: ", options_.max_value_bytes));
  }
  const absl::Time begin = options_.now();
  absl::Status status = PutStorable(address, kv, options);
  absl::MutexLock lock(&mutex_);
  stats_.put_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  if (!status.ok() && !absl::IsInvalidArgument(status)) ++stats_.put_failures;
  return status;
}

absl::Status RedisTier::PutStorable(const ChunkAddress& address, const ChunkKv& kv,
                                    const PutOptions& options) {
  using Presence = redis::EntryWriter::Presence;
  const uint64_t period = PeriodOf(address.key);
  KVBLEND_ASSIGN_OR_RETURN(const Presence presence, writer_.Find(address.key, kv));
  bool is_whole = presence == Presence::kWhole;
  if (is_whole) {
    absl::MutexLock lock(&mutex_);
    // Whoever has erased the chunk and puts it again wants it there.
    is_whole = pending_erasures_.Find(address.key) == nullptr;
  }
  if (is_whole) {
    // It stays as long as if it were written now, unless it has gone meanwhile.
    KVBLEND_ASSIGN_OR_RETURN(is_whole, Prolong(address));
  }
  if (is_whole) {
    Remember(address.key, lifetime(), period);
    absl::MutexLock lock(&mutex_);
    ++stats_.duplicate_puts;
    return absl::OkStatus();
  }
  const EntryHeader header = HeaderOf(address, kv, options, options_.date());
  KVBLEND_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeEntryHeader(header));
  absl::MutexLock no_erasures(&erasing_mutex_);
  // A header must never stand over sections that are not its own.
  if (presence != Presence::kNone) KVBLEND_RETURN_IF_ERROR(writer_.RemoveHeader(address.key));
  {
    // What was to be erased is gone, so that lookups may find what is written now.
    absl::MutexLock lock(&mutex_);
    pending_erasures_.Erase(address.key);
  }
  if (absl::Status status = writer_.Write(header, header_bytes, kv); !status.ok()) {
    Remove(address);  // what cannot be found is not kept
    return status;
  }
  Remember(address.key, lifetime(), period);
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.puts;
    stats_.put_bytes += header.total_bytes();
  }
  if (content_.Add(address)) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  ++stats_.index_errors;
  return absl::OkStatus();
}

absl::StatusOr<bool> RedisTier::Prolong(const ChunkAddress& address) {
  if (ttl_seconds_ == 0) return true;
  KVBLEND_ASSIGN_OR_RETURN(const bool is_there, writer_.Prolong(address.key, address.format.num_layers));
  if (!is_there) return false;
  content_.RefreshTtl(address.content_key);
  absl::MutexLock lock(&mutex_);
  ++stats_.ttl_refreshes;
  return true;
}

void RedisTier::NoteUse(const ChunkAddress& address) {
  const uint64_t period = PeriodOf(address.key);
  {
    absl::MutexLock lock(&mutex_);
    if (IsToBeErased(address)) return;
    const Known* known = known_.Find(address.key);
    const bool is_fresh =
        known != nullptr && known->period == period && known->expires - options_.now() >= lifetime() / 2;
    if (is_fresh) return;
  }
  const absl::StatusOr<bool> is_there = Prolong(address);
  if (!is_there.ok()) return;  // the next use that is told of, or a lookup, tries again
  if (*is_there) {
    Remember(address.key, lifetime(), period);
  } else {
    Miss(address.key, period);
  }
}

void RedisTier::Remove(const ChunkAddress& address) {
  Forget(address.key);
  writer_.Remove(address.key, address.format.num_layers);
  content_.Remove(address);
}

void RedisTier::RemovePending(const ChunkAddress& address) {
  if (!erasing_mutex_.TryLock()) return;  // the next lookup, or the eraser, does it
  bool pending = false;
  {
    absl::MutexLock lock(&mutex_);
    pending = IsToBeErased(address);
  }
  if (pending) Remove(address);
  erasing_mutex_.Unlock();
}

// --- reading

bool RedisTier::CountLookup(const ChunkKey& key, const redis::FoundHeader& found) {
  const absl::StatusOr<EntryHeader>& header = found.header;
  absl::MutexLock lock(&mutex_);
  ++stats_.lookups;
  const bool erased = header.ok() && IsToBeErased(header->address);
  // While it stands there it is still to be erased: nobody hears whether Redis does what it is told now.
  if ((header.ok() && !erased) || absl::IsNotFound(header.status())) pending_erasures_.Erase(key);
  switch (header.status().code()) {
    case absl::StatusCode::kOk:
      ++(erased ? stats_.misses : stats_.hits);
      break;
    case absl::StatusCode::kNotFound:
      ++stats_.misses;
      break;
    case absl::StatusCode::kDataLoss:
      ++stats_.misses;
      ++(found.without_sections ? stats_.incomplete_entries : stats_.damaged_entries);
      break;
    case absl::StatusCode::kUnimplemented:
      ++stats_.misses;
      ++stats_.unsupported_entries;
      break;
    default:
      ++stats_.lookup_errors;
  }
  return erased;
}

std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> RedisTier::OpenEntries(
    absl::Span<const ChunkKey> keys, absl::Time deadline) {
  const absl::Time begin = options_.now();
  std::vector<uint64_t> periods;
  for (const ChunkKey& key : keys) periods.push_back(PeriodOf(key));
  std::vector<redis::FoundHeader> headers =
      redis::ReadHeaders(*cluster_, keys, std::min(deadline, begin + options_.budget));
  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> opened;
  for (size_t i = 0; i < keys.size(); ++i) {
    const ChunkKey& key = keys[i];
    auto& [header, without_sections, time_left] = headers[i];
    if (CountLookup(key, headers[i])) {
      RemovePending(header->address);
      opened.emplace_back(absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " was deleted")));
      continue;
    }
    if (!header.ok()) {
      if (absl::IsDataLoss(header.status())) {
        spdlog::debug("chunk store in Redis: chunk {} removed: {}", key.ToHex(), header.status().ToString());
        Forget(key);
        if (without_sections) {
          writer_.RemoveIncomplete(key);
        } else {
          writer_.RemoveAllLayers(key);
        }
      }
      if (absl::IsNotFound(header.status())) Miss(key, periods[i]);
      opened.emplace_back(header.status());
      continue;
    }
    absl::Duration left = time_left.value_or(absl::InfiniteDuration());
    if (ttl_seconds_ > 0 && left < lifetime() / 2) {
      writer_.RefreshTtl(key, header->address.format.num_layers);
      content_.RefreshTtl(header->address.content_key);
      left = lifetime();  // a Redis that refuses this would refuse to store the entry again, too
      absl::MutexLock lock(&mutex_);
      ++stats_.ttl_refreshes;
    }
    Remember(key, left, periods[i]);
    opened.emplace_back(std::make_shared<redis::RedisEntry>(
        *cluster_, *std::move(header),
        [this](const EntryHeader& read, const redis::RedisEntry::Outcome& outcome) {
          ReportRead(read, outcome);
        }));
  }
  absl::MutexLock lock(&mutex_);
  stats_.lookup_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  return opened;
}

void RedisTier::ReportRead(const EntryHeader& header, const redis::RedisEntry::Outcome& outcome) {
  {
    absl::MutexLock lock(&mutex_);
    if (outcome.status.ok()) {
      ++stats_.reads;
      stats_.read_bytes += outcome.bytes;
      stats_.read_seconds += absl::ToDoubleSeconds(outcome.waited);
    } else if (!absl::IsCancelled(outcome.status)) {
      ++stats_.read_errors;
    }
    if (outcome.is_lost) ++(outcome.without_section ? stats_.incomplete_entries : stats_.damaged_entries);
  }
  if (!outcome.is_lost) return;
  if (outcome.without_section) {
    Forget(header.address.key);
    writer_.RemoveIncomplete(header.address.key);
  } else {
    Remove(header.address);
  }
}

std::vector<std::optional<ContentMatch>> RedisTier::FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                  absl::Time deadline) const {
  const absl::Time begin = options_.now();
  redis::ContentIndex::Found found =
      content_.Find(content_keys, std::min(deadline, begin + options_.budget), [this](const ChunkKey& key) {
        absl::MutexLock lock(&mutex_);
        return pending_erasures_.Find(key) != nullptr;
      });
  absl::MutexLock lock(&mutex_);
  stats_.stale_anchors += found.stale_names;
  stats_.lookup_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  return std::move(found.matches);
}

}  // namespace kvblend::store
