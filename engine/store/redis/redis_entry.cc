#include "engine/store/redis/redis_entry.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/redis_keys.h"

namespace kvblend::store::redis {
namespace {

constexpr size_t kRepliesPerHeader = 4;
constexpr int64_t kUsualHeaderBytes = int64_t{8} << 10;  // of up to 157 layers

absl::Status ErrorOf(const absl::StatusOr<Reply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->is_error("WRONGTYPE")) return absl::DataLossError("something else has the name of an entry");
  return reply->is_error() ? absl::UnavailableError("Redis answers: " + reply->text) : absl::OkStatus();
}

absl::StatusOr<EntryHeader> Decode(const ChunkKey& key, const Reply& reply) {
  if (reply.type == Reply::Type::kNil) {
    return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not in Redis"));
  }
  if (reply.type != Reply::Type::kString) return absl::DataLossError("the header is no string");
  KVBLEND_ASSIGN_OR_RETURN(
      EntryHeader header,
      DecodeEntryHeader({reinterpret_cast<const std::byte*>(reply.text.data()), reply.text.size()}));
  if (static_cast<int64_t>(reply.text.size()) != header.header_bytes()) {
    return absl::DataLossError("something stands behind the header");
  }
  if (header.address.key != key) return absl::DataLossError("the header is of another chunk");
  return header;
}

/// `without_sections`: set where a section of layer 0 is not there at all, which is then the kDataLoss.
absl::StatusOr<EntryHeader> DecodeWithSections(const ChunkKey& key, const absl::StatusOr<Reply>& reply,
                                               const absl::StatusOr<Reply>& k_size,
                                               const absl::StatusOr<Reply>& v_size, bool& without_sections) {
  for (const absl::StatusOr<Reply>* answer : {&reply, &k_size, &v_size}) {
    KVBLEND_RETURN_IF_ERROR(ErrorOf(*answer));
  }
  KVBLEND_ASSIGN_OR_RETURN(EntryHeader header, Decode(key, *reply));
  // Before memory is taken for sections. Those of other layers are of the same size, or will be found out.
  const int64_t k_bytes = header.k_section_bytes();
  const int64_t v_bytes = header.layer_bytes() - k_bytes;
  if (k_size->integer != k_bytes || v_size->integer != v_bytes) {
    without_sections = (k_size->integer == 0 && k_bytes > 0) || (v_size->integer == 0 && v_bytes > 0);
    return absl::DataLossError(absl::StrCat("the sections of layer 0 are of ", k_size->integer, " and ",
                                            v_size->integer, " bytes; in the header ", k_bytes, " and ",
                                            v_bytes));
  }
  return header;
}

std::unique_ptr<Command> GetHeader(Lane lane, const ChunkKey& key) {
  auto command = MakeCommand(lane, {"GET", EntryKeys(key).Header()}, kMaxHeaderBytes);
  command->usual_reply_bytes = kUsualHeaderBytes;
  return command;
}

}  // namespace

std::vector<FoundHeader> ReadHeaders(ClusterClient& cluster, absl::Span<const ChunkKey> keys,
                                     absl::Time deadline) {
  std::vector<std::unique_ptr<Command>> commands;
  for (const ChunkKey& key : keys) {
    const EntryKeys names(key);
    commands.push_back(GetHeader(Lane::kRead, key));
    commands.push_back(MakeCommand(Lane::kRead, {"PTTL", names.Header()}));
    commands.push_back(MakeCommand(Lane::kRead, {"STRLEN", names.K(0)}));
    commands.push_back(MakeCommand(Lane::kRead, {"STRLEN", names.V(0)}));
  }
  for (auto& command : commands) command->deadline = deadline;
  const std::vector<absl::StatusOr<Reply>> replies = cluster.Call(std::move(commands), deadline);
  std::vector<FoundHeader> found;
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::StatusOr<Reply>* const reply = &replies[i * kRepliesPerHeader];
    const absl::StatusOr<Reply>& left = reply[1];
    bool without_sections = false;
    absl::StatusOr<EntryHeader> header =
        DecodeWithSections(keys[i], reply[0], reply[2], reply[3], without_sections);
    found.push_back(
        {.header = std::move(header), .without_sections = without_sections, .time_left = std::nullopt});
    if (left.ok() && left->type == Reply::Type::kInteger && left->integer >= 0) {
      found.back().time_left = absl::Milliseconds(left->integer);
    }
  }
  return found;
}

absl::StatusOr<EntryHeader> ReadHeader(ClusterClient& cluster, Lane lane, const ChunkKey& key,
                                       absl::Time deadline) {
  const absl::StatusOr<Reply> reply = cluster.CallOne(GetHeader(lane, key), deadline);
  // An error of the connection says nothing of the entry.
  if (!reply.ok()) return absl::UnavailableError(reply.status().message());
  return Decode(key, *reply);
}

absl::StatusOr<ReadId> RedisEntry::ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                             absl::AnyInvocable<void(absl::Status)> done) {
  KVBLEND_RETURN_IF_ERROR(CheckRead(layer, out));
  const EntryKeys names(header_.address.key);
  const auto k_bytes = static_cast<size_t>(header_.k_section_bytes());
  auto command = MakeCommand(Lane::kRead, {"MGET", names.K(layer), names.V(layer)},
                             static_cast<int64_t>(out.size()) + 256);
  command->priority = {.bulk = true, .read = priority};
  command->destinations = {out.first(k_bytes), out.subspan(k_bytes)};
  const ReadId id = cluster_.NewId();
  command->id = id;
  command->done = [self = shared_from_this(), layer, out, asked = cluster_.now(),
                   done = std::move(done)](const absl::StatusOr<Reply>& reply) mutable {
    Outcome outcome = self->Check(layer, out, reply);
    outcome.waited = self->cluster_.now() - asked;
    self->on_read_(self->header_, outcome);
    done(std::move(outcome.status));
  };
  if (absl::Status status = cluster_.Submit(std::move(command)); !status.ok()) {
    on_read_(header_, {.status = status});
    return status;
  }
  return id;
}

RedisEntry::Outcome RedisEntry::Check(int32_t layer, absl::Span<const std::byte> bytes,
                                      const absl::StatusOr<Reply>& reply) {
  Outcome outcome{.status = ErrorOf(reply), .bytes = static_cast<int64_t>(bytes.size())};
  if (outcome.status.ok()) {
    bool whole = reply->type == Reply::Type::kArray && reply->elements.size() == 2;
    for (const Reply& section : reply->elements) {
      const bool is_nil = section.type == Reply::Type::kNil;
      outcome.without_section |= is_nil && !bytes.empty();
      whole &= section.at_destination || (is_nil && bytes.empty());
    }
    if (outcome.without_section) {
      outcome.status = absl::DataLossError(absl::StrCat("sections of layer ", layer, " are gone from Redis"));
    } else if (!whole) {
      outcome.status =
          absl::DataLossError(absl::StrCat("sections of layer ", layer, " are not of their size"));
    } else {
      outcome.status = VerifyLayer(header_, layer, bytes);
    }
  }
  outcome.is_lost = absl::IsDataLoss(outcome.status) && reply.ok() && !lost_.exchange(true);
  return outcome;
}

}  // namespace kvblend::store::redis
