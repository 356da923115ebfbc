#include "engine/store/write_behind.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {

WriteBehind::WriteBehind(LowerTier& tier, int64_t max_queued_bytes)
    : tier_(tier), max_queued_bytes_(max_queued_bytes), thread_([this] { Run(); }) {}

WriteBehind::~WriteBehind() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

WriteBehind::Item* WriteBehind::FindQueued(const ChunkKey& key) {
  const auto found =
      std::find_if(queue_.begin(), queue_.end(), [&](const Item& item) { return item.address.key == key; });
  return found == queue_.end() ? nullptr : &*found;
}

bool WriteBehind::IsQueued(const ChunkKey& key) {
  return (writing_.has_value() && writing_->key == key) || FindQueued(key) != nullptr;
}

void WriteBehind::Enqueue(const ChunkAddress& address, std::shared_ptr<const ChunkKv> kv, bool pinned,
                          LowerTier::PutOptions options) {
  absl::MutexLock lock(&mutex_);
  Item* queued = FindQueued(address.key);
  const bool is_being_written = writing_.has_value() && writing_->key == address.key && writing_entry_;
  if (is_being_written || (queued != nullptr && queued->kv != nullptr)) {
    if (pinned) QueuePin(address, true);
    return;
  }
  ForgetFailure(address.key);
  if (stats_.queued_bytes + kv->size_bytes() > max_queued_bytes_) {
    ++stats_.dropped;
    RememberFailure(address.key, absl::ResourceExhaustedError(absl::StrCat(
                                     "chunk ", address.key.ToHex(), " was not written: ", stats_.queued_bytes,
                                     " bytes wait already; allowed: ", max_queued_bytes_)));
    return;
  }
  if (queued == nullptr) {
    ++stats_.queued_entries;
    queued = &queue_.emplace_back(Item{.address = address});
  }
  stats_.queued_bytes += kv->size_bytes();
  queued->kv = std::move(kv);
  queued->options = std::move(options);
  if (pinned) queued->pinned = true;
}

void WriteBehind::EnqueuePin(const ChunkAddress& address, bool pinned) {
  absl::MutexLock lock(&mutex_);
  QueuePin(address, pinned);
}

bool WriteBehind::AmendPin(const ChunkKey& key, bool pinned) {
  absl::MutexLock lock(&mutex_);
  if (Item* queued = FindQueued(key); queued != nullptr) {
    queued->pinned = pinned;
  } else if (writing_.has_value() && writing_->key == key) {
    QueuePin(*writing_, pinned);
  } else {
    return false;
  }
  return true;
}

absl::flat_hash_map<ChunkKey, bool> WriteBehind::QueuedPins() const {
  absl::flat_hash_map<ChunkKey, bool> pins;
  absl::MutexLock lock(&mutex_);
  if (writing_.has_value() && writing_pin_.has_value()) pins[writing_->key] = *writing_pin_;
  for (const Item& item : queue_) {
    if (item.pinned.has_value()) pins[item.address.key] = *item.pinned;
  }
  return pins;
}

void WriteBehind::QueuePin(const ChunkAddress& address, bool pinned) {
  Item* queued = FindQueued(address.key);
  if (queued == nullptr) {
    ++stats_.queued_entries;
    queued = &queue_.emplace_back(Item{.address = address});
  }
  queued->pinned = pinned;
}

void WriteBehind::EnqueueUse(const ChunkAddress& address) {
  absl::MutexLock lock(&mutex_);
  if (uses_.size() < kMaxQueuedUses && !IsQueued(address.key)) uses_.push_back(address);
}

void WriteBehind::TellUse() {
  const ChunkAddress address = std::move(uses_.front());
  uses_.pop_front();
  telling_ = address;
  mutex_.Unlock();
  tier_.NoteUse(address);
  mutex_.Lock();
  telling_.reset();
}

void WriteBehind::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return stop_ || !queue_.empty() || !uses_.empty();
    };
    mutex_.Await(absl::Condition(&work));
    if (!uses_.empty()) {  // first: they are short, and few
      TellUse();
      continue;
    }
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    writing_ = item.address;
    writing_entry_ = item.kv != nullptr;
    writing_pin_ = item.pinned;
    mutex_.Unlock();
    absl::Status status = absl::OkStatus();
    if (item.kv != nullptr) status = tier_.Put(item.address, *item.kv, item.options);
    if (status.ok() && item.pinned.has_value()) {
      status = tier_.SetPinned(kAllNamespaces, item.address.key, *item.pinned);
      if (!*item.pinned && absl::IsNotFound(status)) status = absl::OkStatus();
      if (!status.ok()) {
        spdlog::warn("chunk {} is {} in memory alone: {}", item.address.key.ToHex(),
                     *item.pinned ? "pinned" : "unpinned", std::string(status.message()));
      }
    }
    const bool is_entry = item.kv != nullptr;
    const int64_t bytes = item.bytes();
    item.kv.reset();  // the last reference may free a lot
    mutex_.Lock();
    writing_.reset();
    --stats_.queued_entries;
    stats_.queued_bytes -= bytes;
    if (status.ok()) {
      stats_.written += is_entry ? 1 : 0;
      ForgetFailure(item.address.key);
      continue;
    }
    ++stats_.failed;
    // Why the entry could not be written says more than that its pin found no entry.
    if (is_entry || !failures_.contains(item.address.key)) RememberFailure(item.address.key, status);
  }
}

void WriteBehind::RememberFailure(const ChunkKey& key, const absl::Status& status) {
  if (failures_.insert_or_assign(key, status).second) failure_order_.push_back(key);
  while (static_cast<int32_t>(failure_order_.size()) > kRememberedFailures) {
    failures_.erase(failure_order_.front());
    failure_order_.pop_front();
  }
}

void WriteBehind::ForgetFailure(const ChunkKey& key) {
  if (failures_.erase(key) > 0) std::erase(failure_order_, key);
}

void WriteBehind::Cancel(absl::FunctionRef<bool(const ChunkAddress&)> unwanted) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(uses_, unwanted);
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (!unwanted(it->address)) {
      ++it;
      continue;
    }
    --stats_.queued_entries;
    stats_.queued_bytes -= it->bytes();
    it = queue_.erase(it);
  }
  for (const std::optional<ChunkAddress>* busy : {&writing_, &telling_}) {
    if (!busy->has_value() || !unwanted(**busy)) continue;
    const ChunkKey key = (*busy)->key;
    const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !busy->has_value() || (*busy)->key != key;
    };
    mutex_.Await(absl::Condition(&done));
  }
}

absl::Status WriteBehind::WaitFor(const ChunkKey& key, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !IsQueued(key); };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&done), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("chunk ", key.ToHex(), " is still being written"));
  }
  const auto failure = failures_.find(key);
  return failure == failures_.end() ? absl::OkStatus() : failure->second;
}

absl::Status WriteBehind::Flush(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stats_.queued_entries == 0 && uses_.empty() && !telling_.has_value();
  };
  if (mutex_.AwaitWithDeadline(absl::Condition(&done), deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(stats_.queued_entries, " chunks are still to be written"));
}

WriteBehind::Stats WriteBehind::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace kvblend::store
