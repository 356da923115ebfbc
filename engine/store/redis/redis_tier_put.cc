// The Redis tier's Put: sections, then the header, then the content index.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend::store {
namespace {

/// Sections and the content index outlive the header by that much, at least.
constexpr int64_t kSlackSeconds = 60;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// The first that is no +OK, as what a caller may want to know.
absl::Status CheckAllOk(const std::vector<absl::StatusOr<redis::Reply>>& replies) {
  for (const auto& reply : replies) {
    if (!reply.ok()) return absl::UnavailableError(reply.status().message());
    if (reply->is_error("OOM")) return absl::ResourceExhaustedError("Redis answers: " + reply->text);
    if (!reply->is_ok()) return absl::UnavailableError("Redis answers: " + reply->text);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<redis::Command> RedisTier::SetCommand(const std::string& key,
                                                      absl::Span<const std::byte> value,
                                                      int64_t more_seconds) const {
  auto command = std::make_unique<Command>();
  const std::string seconds = absl::StrCat(ttl_seconds_ + more_seconds);
  command->wire = ttl_seconds_ == 0 ? redis::FormatCommand({"SET", key}, value, {})
                                    : redis::FormatCommand({"SET", key}, value, {"EX", seconds});
  command->slot = redis::SlotOf(key);
  command->lane = redis::Lane::kWrite;
  command->max_reply_bytes = 1 << 12;
  return command;
}

absl::Status RedisTier::Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  if (kv.format() != address.format || kv.num_tokens() != address.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("Redis tier: KV of ", kv.num_tokens(),
                                                   " tokens is not of the shape that its address names (",
                                                   address.num_tokens, " tokens), or of another format"));
  }
  if (!std::isfinite(options.compute_cost_seconds) || options.compute_cost_seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Redis tier: compute_cost_seconds is ", options.compute_cost_seconds, "; allowed: finite and >= 0"));
  }
  const int64_t largest = std::max(kv.k_section_bytes(), kv.layer_bytes() - kv.k_section_bytes());
  if (largest > options_.max_value_bytes) {
    absl::MutexLock lock(&mutex_);
    ++stats_.too_large_puts;
    return absl::ResourceExhaustedError(
        absl::StrCat("Redis tier: a section is ", largest, " bytes; allowed: ", options_.max_value_bytes));
  }
  const absl::Time begin = options_.now();
  absl::Status status = PutChecked(address, kv, options);
  absl::MutexLock lock(&mutex_);
  stats_.put_seconds += absl::ToDoubleSeconds(options_.now() - begin);
  if (!status.ok() && !absl::IsInvalidArgument(status)) ++stats_.put_failures;
  return status;
}

absl::Status RedisTier::PutChecked(const ChunkAddress& address, const ChunkKv& kv,
                                   const PutOptions& options) {
  const redis::EntryKeys names(address.key);
  const int32_t num_layers = address.format.num_layers;
  const std::vector<std::string> sections =
      kv.size_bytes() == 0 ? std::vector<std::string>() : SectionKeys(address.key, num_layers);
  std::vector<std::string> exists = {"EXISTS", names.Header()};
  exists.insert(exists.end(), sections.begin(), sections.end());
  KVBLEND_ASSIGN_OR_RETURN(const Reply there,
                           CallOne(MakeCommand(redis::Lane::kWrite, exists), absl::InfiniteFuture()));
  bool is_whole = there.integer == static_cast<int64_t>(exists.size()) - 1;
  if (is_whole) {
    absl::MutexLock lock(&mutex_);
    // Who was told to erase it, and then to put it, wants it.
    is_whole = !pending_erasures_.Contains(address.key);
    if (is_whole) ++stats_.duplicate_puts;
  }
  if (is_whole) {
    Remember(address.key, ttl_seconds_ > 0 ? absl::Seconds(ttl_seconds_) / 2 : absl::InfiniteDuration());
    return absl::OkStatus();
  }

  const EntryHeader header{.address = address,
                           .label = options.label,
                           .compute_cost_seconds = options.compute_cost_seconds,
                           .created = absl::FromUnixMicros(absl::ToUnixMicros(
                               options.created == absl::InfinitePast() ? options_.now() : options.created)),
                           .layers = ChecksumsOf(kv)};
  KVBLEND_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeEntryHeader(header));
  if (there.integer > 0) {
    // A header must never stand over sections that are not its own.
    KVBLEND_RETURN_IF_ERROR(
        CallOne(MakeCommand(redis::Lane::kWrite, {"UNLINK", names.Header()}), absl::InfiniteFuture())
            .status());
  }
  if (absl::Status status = WriteEntry(header, header_bytes, kv); !status.ok()) {
    RemoveEntry(header);  // what is not found is not kept either
    return status;
  }
  Remember(address.key, ttl_seconds_ > 0 ? absl::Seconds(ttl_seconds_) : absl::InfiniteDuration());
  {
    absl::MutexLock lock(&mutex_);
    pending_erasures_.Erase(address.key);
    ++stats_.puts;
    stats_.put_bytes += header.total_bytes();
  }
  IndexContent(address);
  return absl::OkStatus();
}

absl::Status RedisTier::WriteEntry(const EntryHeader& header, const std::string& header_bytes,
                                   const ChunkKv& kv) {
  const redis::EntryKeys names(header.address.key);
  const auto k_bytes = static_cast<size_t>(kv.k_section_bytes());
  Commands commands;
  for (int32_t layer = 0; kv.size_bytes() > 0 && layer < kv.format().num_layers; ++layer) {
    const absl::Span<const std::byte> bytes = kv.LayerBytes(layer);
    commands.push_back(SetCommand(names.K(layer), bytes.first(k_bytes), kSlackSeconds));
    commands.push_back(SetCommand(names.V(layer), bytes.subspan(k_bytes), kSlackSeconds));
  }
  // `kv` is borrowed until every command has ended: the stall timeouts see to that.
  KVBLEND_RETURN_IF_ERROR(CheckAllOk(cluster_->Call(std::move(commands), absl::InfiniteFuture())));
  Commands last;
  last.push_back(SetCommand(names.Header(), AsBytes(header_bytes), 0));
  return CheckAllOk(cluster_->Call(std::move(last), absl::InfiniteFuture()));
}

void RedisTier::IndexContent(const ChunkAddress& address) {
  const std::string name = redis::ContentIndexKey(address.content_key);
  const std::string member =
      redis::ContentMember({.key = address.key, .isolated = address.anchor_hash == IsolatedAnchorHash()});
  Commands commands;
  commands.push_back(MakeCommand(redis::Lane::kWrite, {"ZADD", name, "0", member}));
  commands.push_back(
      MakeCommand(redis::Lane::kWrite, {"ZREMRANGEBYRANK", name, absl::StrCat(kMaxIndexedAnchors), "-1"}));
  if (ttl_seconds_ > 0) {
    commands.push_back(
        MakeCommand(redis::Lane::kWrite, {"EXPIRE", name, absl::StrCat(ttl_seconds_ + kSlackSeconds)}));
  }
  for (const auto& reply : cluster_->Call(std::move(commands), absl::InfiniteFuture())) {
    if (reply.ok() && !reply->is_error()) continue;
    absl::MutexLock lock(&mutex_);
    ++stats_.index_errors;
    return;
  }
}

void RedisTier::RefreshTtl(const EntryHeader& header) {
  const std::string longer = absl::StrCat(ttl_seconds_ + kSlackSeconds);
  // The header last: it must not outlive its sections.
  for (const std::string& key : SectionKeys(header.address.key, header.address.format.num_layers)) {
    Send(MakeCommand(redis::Lane::kWrite, {"EXPIRE", key, longer}));
  }
  Send(MakeCommand(redis::Lane::kWrite,
                   {"EXPIRE", redis::EntryKeys(header.address.key).Header(), absl::StrCat(ttl_seconds_)}));
  Send(MakeCommand(redis::Lane::kWrite,
                   {"EXPIRE", redis::ContentIndexKey(header.address.content_key), longer}));
  absl::MutexLock lock(&mutex_);
  ++stats_.ttl_refreshes;
}

}  // namespace kvblend::store
