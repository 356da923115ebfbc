#include "engine/store/redis/entry_writer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/redis_keys.h"

namespace kvblend::store::redis {
namespace {

constexpr int32_t kLayersOfUnknown = 128;

/// The first reply that is not +OK, as the error that callers expect.
absl::Status CheckAllOk(const std::vector<absl::StatusOr<Reply>>& replies) {
  for (const auto& reply : replies) {
    if (!reply.ok()) return absl::UnavailableError(reply.status().message());
    if (reply->is_error("OOM")) return absl::ResourceExhaustedError("Redis answers: " + reply->text);
    if (!reply->is_ok()) return absl::UnavailableError("Redis answers: " + reply->text);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Command> EntryWriter::SetCommand(const std::string& key, absl::Span<const std::byte> value,
                                                 int64_t more_seconds) const {
  auto command = std::make_unique<Command>();
  const std::string seconds = absl::StrCat(ttl_seconds_ + more_seconds);
  command->wire = ttl_seconds_ == 0 ? FormatCommand({"SET", key}, value, {})
                                    : FormatCommand({"SET", key}, value, {"EX", seconds});
  command->slot = SlotOf(key);
  command->lane = Lane::kWrite;
  command->max_reply_bytes = 1 << 12;
  return command;
}

std::vector<EntryWriter::Holding> EntryWriter::Look(absl::Span<const ChunkKey> keys, int32_t num_layers,
                                                    absl::Time deadline) {
  std::vector<std::unique_ptr<Command>> commands;
  for (const ChunkKey& key : keys) {
    const EntryKeys names(key);
    std::vector<std::string> exists = names.Sections(num_layers);
    exists.insert(exists.begin(), {"EXISTS", names.Header()});
    commands.push_back(MakeCommand(Lane::kRead, exists));
    commands.push_back(MakeCommand(Lane::kRead, {"PTTL", names.Header()}));
  }
  for (auto& command : commands) command->deadline = deadline;
  const std::vector<absl::StatusOr<Reply>> replies = cluster_.Call(std::move(commands), deadline);
  std::vector<Holding> holdings(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::StatusOr<Reply>& there = replies[2 * i];
    const absl::StatusOr<Reply>& left = replies[2 * i + 1];
    const auto is_number = [](const absl::StatusOr<Reply>& reply) {
      return reply.ok() && reply->type == Reply::Type::kInteger;
    };
    if (!is_number(there) || !is_number(left)) continue;
    Holding& holding = holdings[i];
    holding.answered = true;
    holding.whole = there->integer == 1 + 2 * int64_t{num_layers};
    if (left->integer >= 0) holding.time_left = absl::Milliseconds(left->integer);
  }
  return holdings;
}

absl::StatusOr<EntryWriter::Presence> EntryWriter::Find(const ChunkKey& key, const ChunkKv& kv) {
  const EntryKeys names(key);
  std::vector<std::string> exists = names.Sections(kv.size_bytes() == 0 ? 0 : kv.format().num_layers);
  exists.insert(exists.begin(), {"EXISTS", names.Header()});
  KVBLEND_ASSIGN_OR_RETURN(const Reply there,
                           cluster_.CallOne(MakeCommand(Lane::kWrite, exists), absl::InfiniteFuture()));
  if (there.integer == static_cast<int64_t>(exists.size()) - 1) return Presence::kWhole;
  return there.integer > 0 ? Presence::kPart : Presence::kNone;
}

absl::Status EntryWriter::Write(const EntryHeader& header, const std::string& header_bytes,
                                const ChunkKv& kv) {
  const EntryKeys names(header.address.key);
  const auto k_bytes = static_cast<size_t>(kv.k_section_bytes());
  std::vector<std::unique_ptr<Command>> commands;
  for (int32_t layer = 0; kv.size_bytes() > 0 && layer < kv.format().num_layers; ++layer) {
    const absl::Span<const std::byte> bytes = kv.LayerBytes(layer);
    commands.push_back(SetCommand(names.K(layer), bytes.first(k_bytes), kSlackSeconds));
    commands.push_back(SetCommand(names.V(layer), bytes.subspan(k_bytes), kSlackSeconds));
  }
  // `kv` is borrowed until every command has ended: the stall timeouts see to that.
  KVBLEND_RETURN_IF_ERROR(CheckAllOk(cluster_.Call(std::move(commands), absl::InfiniteFuture())));
  commands.clear();
  commands.push_back(SetCommand(
      names.Header(), {reinterpret_cast<const std::byte*>(header_bytes.data()), header_bytes.size()}, 0));
  return CheckAllOk(cluster_.Call(std::move(commands), absl::InfiniteFuture()));
}

absl::Status EntryWriter::RemoveHeader(const ChunkKey& key) {
  return cluster_
      .CallOne(MakeCommand(Lane::kWrite, {"UNLINK", EntryKeys(key).Header()}), absl::InfiniteFuture())
      .status();
}

void EntryWriter::Remove(const ChunkKey& key, int32_t num_layers) {
  const EntryKeys names(key);
  // The connection for writing keeps the order.
  cluster_.Send(MakeCommand(Lane::kWrite, {"UNLINK", names.Header()}));
  std::vector<std::string> sections = names.Sections(num_layers);
  sections.insert(sections.begin(), "UNLINK");
  cluster_.Send(MakeCommand(Lane::kWrite, sections));
}

void EntryWriter::RemoveIncomplete(const ChunkKey& key) {
  cluster_.Send(MakeCommand(Lane::kWrite, {"UNLINK", EntryKeys(key).Header()}));
}

void EntryWriter::RemoveAllLayers(const ChunkKey& key) { Remove(key, kLayersOfUnknown); }

std::vector<std::unique_ptr<Command>> EntryWriter::ExpireCommands(const ChunkKey& key,
                                                                  int32_t num_layers) const {
  const EntryKeys names(key);
  const std::string longer = absl::StrCat(ttl_seconds_ + kSlackSeconds);
  std::vector<std::unique_ptr<Command>> commands;
  for (const std::string& section : names.Sections(num_layers)) {
    commands.push_back(MakeCommand(Lane::kWrite, {"EXPIRE", section, longer}));
  }
  commands.push_back(MakeCommand(Lane::kWrite, {"EXPIRE", names.Header(), absl::StrCat(ttl_seconds_)}));
  return commands;
}

absl::StatusOr<bool> EntryWriter::Prolong(const ChunkKey& key, int32_t num_layers) {
  std::vector<std::unique_ptr<Command>> sections = ExpireCommands(key, num_layers);
  std::unique_ptr<Command> header = std::move(sections.back());
  sections.pop_back();
  // The header must not outlive its sections.
  for (const auto& reply : cluster_.Call(std::move(sections), absl::InfiniteFuture())) {
    if (!reply.ok()) return absl::UnavailableError(reply.status().message());
    if (reply->is_error()) return absl::UnavailableError("Redis answers: " + reply->text);
  }
  KVBLEND_ASSIGN_OR_RETURN(const Reply there, cluster_.CallOne(std::move(header), absl::InfiniteFuture()));
  return there.integer == 1;
}

void EntryWriter::RefreshTtl(const ChunkKey& key, int32_t num_layers) {
  // The connection for writing keeps the order, so the header does not outlive its sections.
  for (auto& command : ExpireCommands(key, num_layers)) cluster_.Send(std::move(command));
}

}  // namespace kvblend::store::redis
