#include "server/grpc/open_streams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/grpc/event_stream.h"

namespace kvblend::server {

void OpenStreams::Add(const EventStream* stream, std::weak_ptr<EventStream> owner) {
  absl::MutexLock lock(&mutex_);
  streams_[stream] = std::move(owner);
}

void OpenStreams::Remove(const EventStream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

bool OpenStreams::AwaitNone(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return streams_.empty(); };
  return mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

void OpenStreams::EndLargest() {
  std::shared_ptr<EventStream> largest;
  size_t most = 0;
  for (std::shared_ptr<EventStream>& stream : All()) {
    const size_t unsent = stream->UnsentBytes();
    if (unsent <= most) continue;
    most = unsent;
    largest = std::move(stream);
  }
  if (largest == nullptr) return;
  largest->EndAsTooSlow(absl::StrCat(most, " bytes of the answer were waiting to be sent, the most of all",
                                     " that wait for clients; allowed: ", limits_.max_unsent_bytes,
                                     " for all together"));
}

void OpenStreams::EndStuck(absl::Time now) {
  for (const std::shared_ptr<EventStream>& stream : All()) {
    if (now - stream->SendingSince() < limits_.write_timeout) continue;
    stream->EndAsTooSlow(
        absl::StrCat("a part of the answer was not taken for ", absl::FormatDuration(limits_.write_timeout)));
  }
}

std::vector<std::shared_ptr<EventStream>> OpenStreams::All() const {
  std::vector<std::shared_ptr<EventStream>> all;
  absl::MutexLock lock(&mutex_);
  for (const auto& [_, stream] : streams_) {
    if (std::shared_ptr<EventStream> found = stream.lock()) all.push_back(std::move(found));
  }
  return all;
}

StuckStreamsWatch::StuckStreamsWatch(std::shared_ptr<OpenStreams> streams)
    : streams_(std::move(streams)), thread_([this] {
        const absl::Duration look_every = std::min(streams_->limits().write_timeout / 4, absl::Seconds(1));
        while (!stop_.WaitForNotificationWithTimeout(look_every)) streams_->EndStuck(SteadyNow());
      }) {}

StuckStreamsWatch::~StuckStreamsWatch() {
  stop_.Notify();
  thread_.join();
}

}  // namespace kvblend::server
