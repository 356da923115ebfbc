// The Redis tier's Stat, Erase and FindAnyAnchor, and how entries are removed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend::store {
namespace {

constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;
/// How many of a content key's anchors are tried.
constexpr int32_t kMaxTriedAnchors = 8;
/// Of an entry whose header can't be read nobody knows how many layers it has.
constexpr int32_t kLayersOfUnknown = 128;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

std::optional<ChunkInfo> RedisTier::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  const absl::StatusOr<Reply> reply =
      CallOne(MakeCommand(redis::Lane::kRead, {"GET", redis::EntryKeys(key).Header()}, kMaxHeaderBytes),
              options_.now() + options_.budget);
  if (!reply.ok() || reply->type != Reply::Type::kString) return std::nullopt;
  const absl::StatusOr<EntryHeader> header = DecodeEntryHeader(AsBytes(reply->text));
  if (!header.ok() || header->address.key != key) return std::nullopt;
  const ChunkAddress& address = header->address;
  if (filter.has_value() && address.tenant_namespace != *filter) return std::nullopt;
  {
    absl::MutexLock lock(&mutex_);
    if (pending_erasures_.IsOf(key, address.tenant_namespace)) return std::nullopt;
  }
  return ChunkInfo{.key = key,
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

// --- any anchor

std::vector<std::optional<ContentMatch>> RedisTier::FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                  absl::Time deadline) const {
  const absl::Time begin = options_.now();
  deadline = std::min(deadline, begin + options_.budget);
  Commands ranges;
  for (const ContentKey& key : content_keys) {
    ranges.push_back(MakeCommand(redis::Lane::kRead, {"ZRANGE", redis::ContentIndexKey(key), "0",
                                                      absl::StrCat(kMaxTriedAnchors - 1)}));
    ranges.back()->deadline = deadline;
  }
  const std::vector<absl::StatusOr<Reply>> members = cluster_->Call(std::move(ranges), deadline);

  struct Candidate {
    size_t index;  // of content_keys
    ContentMatch match;
  };
  std::vector<Candidate> candidates;
  std::vector<std::vector<std::string>> stale(content_keys.size());
  Commands questions;
  for (size_t i = 0; i < content_keys.size(); ++i) {
    if (!members[i].ok()) continue;
    for (const Reply& member : members[i]->elements) {
      const std::optional<ContentMatch> match = redis::ParseContentMember(member.text);
      if (!match.has_value()) {
        if (!member.text.empty()) stale[i].push_back(member.text);
        continue;
      }
      candidates.push_back({i, *match});
      questions.push_back(MakeCommand(redis::Lane::kRead, {"EXISTS", redis::EntryKeys(match->key).Header()}));
      questions.back()->deadline = deadline;
    }
  }
  const std::vector<absl::StatusOr<Reply>> answers = cluster_->Call(std::move(questions), deadline);
  std::vector<std::optional<ContentMatch>> found(content_keys.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!answers[i].ok() || answers[i]->type != Reply::Type::kInteger) continue;
    const auto& [index, match] = candidates[i];
    if (answers[i]->integer == 0) {
      stale[index].push_back(redis::ContentMember(match));
    } else if (!found[index].has_value()) {
      absl::MutexLock lock(&mutex_);
      if (!pending_erasures_.Contains(match.key)) found[index] = match;
    }
  }
  for (size_t i = 0; i < content_keys.size(); ++i) {
    if (stale[i].empty()) continue;
    RemoveFromIndex(content_keys[i], stale[i]);
    absl::MutexLock lock(&mutex_);
    stats_.stale_anchors += static_cast<int64_t>(stale[i].size());
  }
  absl::MutexLock lock(&mutex_);
  stats_.lookup_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  return found;
}

// --- removing

void RedisTier::RemoveFromIndex(const ContentKey& content_key,
                                const std::vector<std::string>& members) const {
  std::vector<std::string> arguments = {"ZREM", redis::ContentIndexKey(content_key)};
  arguments.insert(arguments.end(), members.begin(), members.end());
  Send(MakeCommand(redis::Lane::kWrite, arguments));
}

void RedisTier::RemoveEntry(const EntryHeader& header) const {
  const ChunkAddress& address = header.address;
  Forget(address.key);
  // The connection for writing keeps the order.
  Send(MakeCommand(redis::Lane::kWrite, {"UNLINK", redis::EntryKeys(address.key).Header()}));
  std::vector<std::string> sections = SectionKeys(address.key, address.format.num_layers);
  sections.insert(sections.begin(), "UNLINK");
  Send(MakeCommand(redis::Lane::kWrite, sections));
  const bool isolated = address.anchor_hash == IsolatedAnchorHash();
  RemoveFromIndex(address.content_key, {redis::ContentMember({.key = address.key, .isolated = isolated})});
}

void RedisTier::RemoveEntryWithoutHeader(const ChunkKey& key) const {
  Forget(key);
  Send(MakeCommand(redis::Lane::kWrite, {"UNLINK", redis::EntryKeys(key).Header()}));
  std::vector<std::string> sections = SectionKeys(key, kLayersOfUnknown);
  sections.insert(sections.begin(), "UNLINK");
  Send(MakeCommand(redis::Lane::kWrite, sections));
}

absl::StatusOr<bool> RedisTier::Erase(NamespaceFilter filter, const ChunkKey& key) {
  const redis::EntryKeys names(key);
  absl::StatusOr<Reply> reply = CallOne(
      MakeCommand(redis::Lane::kWrite, {"GET", names.Header()}, kMaxHeaderBytes), absl::InfiniteFuture());
  bool found = false;
  if (reply.ok() && reply->type == Reply::Type::kString) {
    const absl::StatusOr<EntryHeader> header = DecodeEntryHeader(AsBytes(reply->text));
    const bool is_sound = header.ok() && header->address.key == key;
    if (is_sound && filter.has_value() && header->address.tenant_namespace != *filter) return false;
    found = true;
    Forget(key);
    // Waited for: when this returns, no server finds it.
    reply = CallOne(MakeCommand(redis::Lane::kWrite, {"UNLINK", names.Header()}), absl::InfiniteFuture());
    if (reply.ok() && is_sound) RemoveEntry(*header);
    if (reply.ok() && !is_sound) RemoveEntryWithoutHeader(key);
  }
  absl::MutexLock lock(&mutex_);
  if (reply.ok()) {
    pending_erasures_.Erase(key);
    stats_.erased += found ? 1 : 0;
    return found;
  }
  ++stats_.erase_failures;
  known_.Erase(key);
  pending_erasures_.Insert(key, filter.has_value() ? std::optional<std::string>(*filter) : std::nullopt);
  return absl::UnavailableError(reply.status().message());
}

}  // namespace kvblend::store
