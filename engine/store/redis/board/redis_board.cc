#include "engine/store/redis/board/redis_board.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/redis_keys.h"

namespace kvblend::store::redis {
namespace {

constexpr int64_t kMaxNamesReplyBytes = 1 << 14;  // a hostile writer's names may be long
constexpr size_t kMaxReplicaName = 32;

/// The keys of what one replica has left; the braces keep them on one node, and replicas on different ones.
class BoardKeys {
 public:
  explicit BoardKeys(const ReplicaBoard::Place& place)
      : prefix_(absl::StrCat("kvb1:moments:{", place.space, ":", place.replica, "}:")) {}
  std::string Note() const { return prefix_ + "note"; }
  std::string Part(int32_t part) const { return absl::StrCat(prefix_, part); }
  std::vector<std::string> Parts(int32_t num_parts) const {
    std::vector<std::string> names;
    names.reserve(num_parts);
    for (int32_t part = 0; part < num_parts; ++part) names.push_back(Part(part));
    return names;
  }

 private:
  const std::string prefix_;
};

/// A sorted set, all scores 0, of the replicas that have left something.
std::string SpaceKey(std::string_view space) {
  return absl::StrCat("kvb1:moments:{", std::string(space), "}");
}

bool IsReplicaName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxReplicaName && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c)) &&
           !absl::ascii_isupper(static_cast<unsigned char>(c));
  });
}

std::string Seconds(absl::Duration ttl) { return absl::StrCat(absl::ToInt64Seconds(ttl)); }

absl::Status CheckReply(const absl::StatusOr<Reply>& reply, Reply::Type type) {
  if (!reply.ok()) return absl::UnavailableError(reply.status().message());
  if (reply->is_error("OOM")) return absl::ResourceExhaustedError("Redis answers: " + reply->text);
  if (reply->is_error("WRONGTYPE")) return absl::DataLossError("something else has that name");
  if (reply->type != type) return absl::UnavailableError("Redis answers: " + reply->text);
  return absl::OkStatus();
}

}  // namespace

absl::Status RedisBoard::Set(const std::string& key, std::string_view bytes, absl::Duration ttl) {
  if (static_cast<int64_t>(bytes.size()) > max_value_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("what replicas share is ", bytes.size(), " bytes; allowed: ", max_value_bytes_));
  }
  std::vector<std::unique_ptr<Command>> commands(1);
  commands[0] = std::make_unique<Command>();
  const std::string seconds = Seconds(ttl);
  commands[0]->wire = FormatCommand({"SET", key}, AsBytes(bytes), {"EX", seconds});
  commands[0]->slot = SlotOf(key);
  commands[0]->lane = Lane::kWrite;
  // `bytes` are borrowed until the command has ended: the stall timeout sees to that.
  return CheckReply(cluster_.Call(std::move(commands), absl::InfiniteFuture())[0], Reply::Type::kStatus);
}

absl::Status RedisBoard::PutPart(const Place& place, int32_t part, std::string_view bytes,
                                 absl::Duration ttl) {
  return Set(BoardKeys(place).Part(part), bytes, ttl + absl::Seconds(kSlackSeconds));
}

absl::Status RedisBoard::PutNote(const Place& place, std::string_view bytes, absl::Duration ttl) {
  KVBLEND_RETURN_IF_ERROR(Set(BoardKeys(place).Note(), bytes, ttl));
  return Name(place, ttl);
}

absl::Status RedisBoard::Name(const Place& place, absl::Duration ttl) {
  const std::string space = SpaceKey(place.space);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeCommand(Lane::kWrite, {"ZADD", space, "0", place.replica}));
  commands.push_back(MakeCommand(Lane::kWrite, {"ZREMRANGEBYRANK", space, absl::StrCat(kMaxNotes), "-1"}));
  commands.push_back(
      MakeCommand(Lane::kWrite, {"EXPIRE", space, Seconds(ttl + absl::Seconds(kSlackSeconds))}));
  for (const auto& reply : cluster_.Call(std::move(commands), absl::InfiniteFuture())) {
    KVBLEND_RETURN_IF_ERROR(CheckReply(reply, Reply::Type::kInteger));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RedisBoard::Prolong(const Place& place, int32_t num_parts, absl::Duration ttl) {
  const BoardKeys keys(place);
  std::vector<std::unique_ptr<Command>> commands;
  const auto expire = [&](const std::string& key, absl::Duration left) {
    commands.push_back(MakeCommand(Lane::kWrite, {"EXPIRE", key, Seconds(left)}));
  };
  for (const std::string& part : keys.Parts(num_parts)) expire(part, ttl + absl::Seconds(kSlackSeconds));
  expire(keys.Note(), ttl);  // last: it must not outlive its parts
  bool all_there = true;
  for (const auto& reply : cluster_.Call(std::move(commands), absl::InfiniteFuture())) {
    KVBLEND_RETURN_IF_ERROR(CheckReply(reply, Reply::Type::kInteger));
    all_there = all_there && reply->integer == 1;
  }
  if (!all_there) return false;
  KVBLEND_RETURN_IF_ERROR(Name(place, ttl));
  return true;
}

absl::Status RedisBoard::Remove(const Place& place, int32_t num_parts) {
  const BoardKeys keys(place);
  // The connection keeps the order. The note goes first, so that it never leads to parts that are gone.
  std::vector<std::string> parts = keys.Parts(num_parts);
  parts.insert(parts.begin(), "UNLINK");
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeCommand(Lane::kWrite, {"UNLINK", keys.Note()}));
  commands.push_back(MakeCommand(Lane::kWrite, parts));
  commands.push_back(MakeCommand(Lane::kWrite, {"ZREM", SpaceKey(place.space), place.replica}));
  for (const auto& reply : cluster_.Call(std::move(commands), absl::InfiniteFuture())) {
    KVBLEND_RETURN_IF_ERROR(CheckReply(reply, Reply::Type::kInteger));
  }
  return absl::OkStatus();
}

std::vector<absl::StatusOr<std::string>> RedisBoard::GetAll(const std::vector<std::string>& keys,
                                                            int64_t bytes) {
  std::vector<std::unique_ptr<Command>> lengths, gets;
  for (const std::string& key : keys) lengths.push_back(MakeCommand(Lane::kWrite, {"STRLEN", key}));
  const std::vector<absl::StatusOr<Reply>> sizes = cluster_.Call(std::move(lengths), absl::InfiniteFuture());
  std::vector<absl::StatusOr<std::string>> values;
  std::vector<size_t> asked;
  for (size_t i = 0; i < keys.size(); ++i) {
    absl::Status status = CheckReply(sizes[i], Reply::Type::kInteger);
    if (status.ok() && sizes[i]->integer == 0)
      status = absl::NotFoundError(absl::StrCat(keys[i], " is gone"));
    if (status.ok() && sizes[i]->integer != bytes) {
      status =
          absl::DataLossError(absl::StrCat(keys[i], " has ", sizes[i]->integer, " bytes; allowed: ", bytes));
    }
    if (status.ok()) {
      asked.push_back(i);
      gets.push_back(MakeCommand(Lane::kWrite, {"GET", keys[i]}, bytes + (1 << 10)));
    }
    values.push_back(status.ok() ? absl::StatusOr<std::string>("") : std::move(status));
  }
  std::vector<absl::StatusOr<Reply>> replies = cluster_.Call(std::move(gets), absl::InfiniteFuture());
  for (size_t i = 0; i < asked.size(); ++i) {
    absl::StatusOr<std::string>& value = values[asked[i]];
    if (replies[i].ok() && replies[i]->type == Reply::Type::kNil) {
      value = absl::NotFoundError(absl::StrCat(keys[asked[i]], " is gone"));
    } else if (absl::Status status = CheckReply(replies[i], Reply::Type::kString); !status.ok()) {
      value = std::move(status);
    } else {
      value = std::move(replies[i]->text);
    }
  }
  return values;
}

absl::StatusOr<std::vector<ReplicaBoard::Note>> RedisBoard::Notes(std::string_view space,
                                                                  int64_t note_bytes) {
  const std::string key = SpaceKey(space);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(
      MakeCommand(Lane::kWrite, {"ZRANGE", key, "0", absl::StrCat(kMaxNotes - 1)}, kMaxNamesReplyBytes));
  const std::vector<absl::StatusOr<Reply>> names = cluster_.Call(std::move(commands), absl::InfiniteFuture());
  KVBLEND_RETURN_IF_ERROR(CheckReply(names[0], Reply::Type::kArray));
  std::vector<Note> notes;
  std::vector<std::string> keys, stale = {"ZREM", key};
  for (const Reply& name : names[0]->elements) {
    if (!IsReplicaName(name.text)) {
      stale.push_back(name.text);
      continue;
    }
    keys.push_back(BoardKeys({std::string(space), name.text}).Note());
    notes.push_back({name.text, std::string()});
  }
  std::vector<absl::StatusOr<std::string>> values = GetAll(keys, note_bytes);
  std::vector<Note> found;
  for (size_t i = 0; i < notes.size(); ++i) {
    if (absl::IsNotFound(values[i].status())) {
      stale.push_back(notes[i].replica);
    } else {
      found.push_back({std::move(notes[i].replica), std::move(values[i])});
    }
  }
  if (stale.size() > 2) cluster_.Send(MakeCommand(Lane::kWrite, stale));
  return found;
}

absl::StatusOr<std::string> RedisBoard::Part(const Place& place, int32_t part, int64_t part_bytes) {
  return GetAll({BoardKeys(place).Part(part)}, part_bytes)[0];
}

}  // namespace kvblend::store::redis
