// The Redis tier's reading: headers within the budget, layers as they come.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/store/redis/redis_entry.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/redis_tier.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {
namespace {

constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;
constexpr int32_t kRepliesPerLookup = 4;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status ErrorOf(const absl::StatusOr<redis::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->is_error("WRONGTYPE")) return absl::DataLossError("something else has the name of an entry");
  return reply->is_error() ? absl::UnavailableError("Redis answers: " + reply->text) : absl::OkStatus();
}

}  // namespace

// --- headers

absl::StatusOr<EntryHeader> RedisTier::ReadHeader(const ChunkKey& key, const absl::StatusOr<Reply>& header,
                                                  const absl::StatusOr<Reply>& k_size,
                                                  const absl::StatusOr<Reply>& v_size) {
  for (const absl::StatusOr<Reply>* reply : {&header, &k_size, &v_size}) {
    if (absl::Status status = ErrorOf(*reply); !status.ok()) return status;
  }
  if (header->type == Reply::Type::kNil) {
    return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not in Redis"));
  }
  if (header->type != Reply::Type::kString) return absl::DataLossError("the header is no string");
  absl::StatusOr<EntryHeader> decoded = DecodeEntryHeader(AsBytes(header->text));
  if (!decoded.ok()) return decoded.status();
  if (static_cast<int64_t>(header->text.size()) != decoded->header_bytes()) {
    return absl::DataLossError("something stands behind the header");
  }
  if (decoded->address.key != key) return absl::DataLossError("the header is of another chunk");
  // Before memory is taken for them. The sections of the other layers are of the same size, or will be found
  // out.
  const int64_t v_bytes = decoded->layer_bytes() - decoded->k_section_bytes();
  if (k_size->integer != decoded->k_section_bytes() || v_size->integer != v_bytes) {
    return absl::DataLossError(absl::StrCat("the sections of layer 0 are of ", k_size->integer, " and ",
                                            v_size->integer, " bytes; in the header ",
                                            decoded->k_section_bytes(), " and ", v_bytes));
  }
  return decoded;
}

std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> RedisTier::OpenEntries(
    absl::Span<const ChunkKey> keys, absl::Time deadline) {
  const absl::Time begin = options_.now();
  deadline = std::min(deadline, begin + options_.budget);
  Commands commands;
  for (const ChunkKey& key : keys) {
    const redis::EntryKeys names(key);
    commands.push_back(MakeCommand(redis::Lane::kRead, {"GET", names.Header()}, kMaxHeaderBytes));
    commands.push_back(MakeCommand(redis::Lane::kRead, {"PTTL", names.Header()}));
    commands.push_back(MakeCommand(redis::Lane::kRead, {"STRLEN", names.K(0)}));
    commands.push_back(MakeCommand(redis::Lane::kRead, {"STRLEN", names.V(0)}));
  }
  for (auto& command : commands) command->deadline = deadline;
  const std::vector<absl::StatusOr<Reply>> replies = cluster_->Call(std::move(commands), deadline);

  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> opened;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto* reply = &replies[i * kRepliesPerLookup];
    absl::StatusOr<EntryHeader> header = ReadHeader(keys[i], reply[0], reply[2], reply[3]);
    bool erased = false;
    {
      absl::MutexLock lock(&mutex_);
      ++stats_.lookups;
      erased = header.ok() && pending_erasures_.IsOf(keys[i], header->address.tenant_namespace);
      if (header.ok() || absl::IsNotFound(header.status())) pending_erasures_.Erase(keys[i]);
      const absl::StatusCode code = erased ? absl::StatusCode::kNotFound : header.status().code();
      switch (code) {
        case absl::StatusCode::kOk:
          ++stats_.hits;
          break;
        case absl::StatusCode::kNotFound:
          ++stats_.misses;
          break;
        case absl::StatusCode::kDataLoss:
          ++stats_.misses;
          // The header is whole, but the first sections are not as it says.
          ++(reply[2].ok() && reply[2]->integer == 0 ? stats_.incomplete_entries : stats_.damaged_entries);
          break;
        case absl::StatusCode::kUnimplemented:
          ++stats_.misses;
          ++stats_.unsupported_entries;
          break;
        default:
          ++stats_.lookup_errors;
      }
    }
    if (erased) {
      RemoveEntry(*header);
      opened.emplace_back(absl::NotFoundError(absl::StrCat("chunk ", keys[i].ToHex(), " was deleted")));
      continue;
    }
    if (!header.ok()) {
      if (absl::IsDataLoss(header.status())) {
        spdlog::debug("chunk store in Redis: chunk {} removed: {}", keys[i].ToHex(),
                      header.status().ToString());
        RemoveEntryWithoutHeader(keys[i]);
      }
      if (absl::IsNotFound(header.status())) Forget(keys[i]);
      opened.emplace_back(header.status());
      continue;
    }
    const int64_t left_ms = reply[1].ok() && reply[1]->type == Reply::Type::kInteger ? reply[1]->integer : -1;
    Remember(keys[i], left_ms >= 0 ? absl::Milliseconds(left_ms) : absl::InfiniteDuration());
    if (ttl_seconds_ > 0 && left_ms >= 0 && left_ms < ttl_seconds_ * 500) RefreshTtl(*header);
    opened.emplace_back(std::make_shared<RedisEntry>(*this, *std::move(header)));
  }
  absl::MutexLock lock(&mutex_);
  stats_.lookup_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  return opened;
}

// --- layers

absl::StatusOr<ReadId> RedisEntry::ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                             absl::AnyInvocable<void(absl::Status)> done) {
  if (layer < 0 || layer >= header_.address.format.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, "; allowed: 0 to ", header_.address.format.num_layers - 1));
  }
  const int64_t bytes = header_.layer_bytes();
  if (static_cast<int64_t>(out.size()) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is ", out.size(), " bytes; allowed: ", bytes));
  }
  if (reinterpret_cast<uintptr_t>(out.data()) % ChunkKv::kSectionAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is not aligned to ", ChunkKv::kSectionAlignment, " bytes"));
  }
  const redis::EntryKeys names(header_.address.key);
  const auto k_bytes = static_cast<size_t>(header_.k_section_bytes());
  auto command =
      RedisTier::MakeCommand(redis::Lane::kRead, {"MGET", names.K(layer), names.V(layer)}, bytes + 256);
  command->priority = {.bulk = true, .prompt = priority.prompt, .layer = priority.layer};
  command->destinations = {out.first(k_bytes), out.subspan(k_bytes)};
  const ReadId id = tier_.next_read_.fetch_add(1, std::memory_order_relaxed);
  command->id = id;
  command->done = [self = shared_from_this(), layer, out, asked = tier_.options_.now(),
                   done = std::move(done)](const absl::StatusOr<redis::Reply>& reply) mutable {
    done(self->tier_.CheckLayer(*self, layer, out, asked, reply));
  };
  if (absl::Status status = tier_.cluster_->Submit(std::move(command)); !status.ok()) {
    absl::MutexLock lock(&tier_.mutex_);
    ++tier_.stats_.read_errors;
    return status;
  }
  return id;
}

void RedisEntry::CancelRead(ReadId id) { tier_.cluster_->Cancel(id); }

absl::Status RedisTier::CheckLayer(RedisEntry& entry, int32_t layer, absl::Span<const std::byte> bytes,
                                   absl::Time asked, const absl::StatusOr<Reply>& reply) {
  absl::Status status = ErrorOf(reply);
  bool missing = false;
  if (status.ok()) {
    bool whole = reply->type == Reply::Type::kArray && reply->elements.size() == 2;
    for (const Reply& section : reply->elements) {
      const bool is_nil = section.type == Reply::Type::kNil;
      missing |= is_nil && !bytes.empty();
      whole &= section.at_destination || (is_nil && bytes.empty());
    }
    if (missing) {
      status = absl::DataLossError(absl::StrCat("sections of layer ", layer, " are gone from Redis"));
    } else if (!whole) {
      status = absl::DataLossError(absl::StrCat("sections of layer ", layer, " are not of their size"));
    } else {
      status = VerifyLayer(entry.header(), layer, bytes);
    }
  }
  // Of an entry's many layers that fail, one is told of.
  const bool is_lost = absl::IsDataLoss(status) && reply.ok() && entry.MarkLost();
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) {
      ++stats_.reads;
      stats_.read_bytes += static_cast<int64_t>(bytes.size());
      stats_.read_seconds += absl::ToDoubleSeconds(options_.now() - asked);
    } else {
      ++(absl::IsCancelled(status) ? stats_.cancelled_reads : stats_.read_errors);
    }
    if (is_lost) ++(missing ? stats_.incomplete_entries : stats_.damaged_entries);
  }
  if (is_lost) RemoveEntry(entry.header());
  return status;
}

}  // namespace kvblend::store
