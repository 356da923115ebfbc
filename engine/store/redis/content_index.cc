#include "engine/store/redis/content_index.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/store/redis/redis_keys.h"

namespace kvblend::store::redis {
namespace {

/// So many anchors of a content key are tried.
constexpr int32_t kMaxTriedAnchors = 8;

}  // namespace

bool ContentIndex::Add(const ChunkAddress& address) {
  const std::string name = ContentIndexKey(address.content_key);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeCommand(Lane::kWrite, {"ZADD", name, "0", ContentMember(MatchOf(address))}));
  commands.push_back(
      MakeCommand(Lane::kWrite, {"ZREMRANGEBYRANK", name, absl::StrCat(kMaxIndexedAnchors), "-1"}));
  if (ttl_seconds_ > 0) {
    commands.push_back(
        MakeCommand(Lane::kWrite, {"EXPIRE", name, absl::StrCat(ttl_seconds_ + kSlackSeconds)}));
  }
  for (const auto& reply : cluster_.Call(std::move(commands), absl::InfiniteFuture())) {
    if (!reply.ok() || reply->is_error()) return false;
  }
  return true;
}

void ContentIndex::Remove(const ChunkAddress& address) {
  Remove(address.content_key, {ContentMember(MatchOf(address))});
}

void ContentIndex::Remove(const ContentKey& content_key, const std::vector<std::string>& members) const {
  std::vector<std::string> arguments = {"ZREM", ContentIndexKey(content_key)};
  arguments.insert(arguments.end(), members.begin(), members.end());
  cluster_.Send(MakeCommand(Lane::kWrite, arguments));
}

void ContentIndex::RefreshTtl(const ContentKey& content_key) {
  cluster_.Send(MakeCommand(
      Lane::kWrite, {"EXPIRE", ContentIndexKey(content_key), absl::StrCat(ttl_seconds_ + kSlackSeconds)}));
}

ContentIndex::Found ContentIndex::Find(absl::Span<const ContentKey> content_keys, absl::Time deadline,
                                       const std::function<bool(const ChunkKey&)>& is_erased) const {
  std::vector<std::unique_ptr<Command>> ranges;
  for (const ContentKey& key : content_keys) {
    ranges.push_back(
        MakeCommand(Lane::kRead, {"ZRANGE", ContentIndexKey(key), "0", absl::StrCat(kMaxTriedAnchors - 1)}));
    ranges.back()->deadline = deadline;
  }
  const std::vector<absl::StatusOr<Reply>> members = cluster_.Call(std::move(ranges), deadline);

  struct Candidate {
    size_t index;  // of content_keys
    ContentMatch match;
  };
  std::vector<Candidate> candidates;
  std::vector<std::vector<std::string>> stale(content_keys.size());
  std::vector<std::unique_ptr<Command>> questions;
  for (size_t i = 0; i < content_keys.size(); ++i) {
    if (!members[i].ok()) continue;
    for (const Reply& member : members[i]->elements) {
      const std::optional<ContentMatch> match = ParseContentMember(member.text);
      if (!match.has_value()) {
        if (!member.text.empty()) stale[i].push_back(member.text);
        continue;
      }
      candidates.push_back({i, *match});
      questions.push_back(MakeCommand(Lane::kRead, {"EXISTS", EntryKeys(match->key).Header()}));
      questions.back()->deadline = deadline;
    }
  }
  const std::vector<absl::StatusOr<Reply>> answers = cluster_.Call(std::move(questions), deadline);
  Found found{.matches = std::vector<std::optional<ContentMatch>>(content_keys.size())};
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!answers[i].ok() || answers[i]->type != Reply::Type::kInteger) continue;
    const auto& [index, match] = candidates[i];
    if (answers[i]->integer == 0) {
      stale[index].push_back(ContentMember(match));
    } else if (!found.matches[index].has_value() && !is_erased(match.key)) {
      found.matches[index] = match;
    }
  }
  for (size_t i = 0; i < content_keys.size(); ++i) {
    if (stale[i].empty()) continue;
    Remove(content_keys[i], stale[i]);
    found.stale_names += static_cast<int64_t>(stale[i].size());
  }
  return found;
}

}  // namespace kvblend::store::redis
