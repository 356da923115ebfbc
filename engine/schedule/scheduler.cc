#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace kvblend::schedule {

Scheduler::Scheduler(const Options& options, Clock& clock)
    : options_(
          {std::max(options.max_queued, 1), std::max(options.max_queued_background, 1), options.ongoing}),
      clock_(clock),
      engine_thread_([this] { RunEngine(); }),
      timer_thread_([this] { RunTimer(); }) {}

Scheduler::~Scheduler() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = closed_ = stopping_ = true;
    work_.SignalAll();
    deadline_.SignalAll();
    AbandonCancelled(TakeAll());
  }
  engine_thread_.join();
  timer_thread_.join();
}

absl::StatusOr<JobId> Scheduler::Submit(Job job) {
  absl::MutexLock lock(&mutex_);
  const bool is_background = job.lane == Lane::kBackground;
  if (closed_ || (draining_ && !job.continues && !is_background)) {
    return absl::UnavailableError("the engine is shutting down and accepts no new requests");
  }
  const absl::Time now = clock_.Now();
  if (job.deadline <= now) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the deadline passed ", absl::FormatDuration(absl::Trunc(now - job.deadline, absl::Microseconds(1))),
        " before submission"));
  }
  const int32_t queued = is_background ? queue_.size(Lane::kBackground)
                                       : queue_.size(Lane::kInteractive) + queue_.size(Lane::kBulk);
  const int32_t limit = is_background ? options_.max_queued_background : options_.max_queued;
  if (!job.continues && queued >= limit) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queued,
                                                     is_background ? " background jobs" : " requests",
                                                     " wait; allowed: ", limit));
  }
  const JobId id = next_id_++;
  queue_.Push(id, job.lane, job.fairness_key);
  if (job.deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(job.deadline, id);
    if (deadlines_.begin()->second == id) deadline_.Signal();
  }
  entries_.emplace(id, Entry{std::move(job), now});
  work_.Signal();
  return id;
}

bool Scheduler::Abandon(JobId id, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (!queue_.Remove(id)) return false;
  ++abandoning_;
  {
    Entry entry = Take(id);
    mutex_.Unlock();
    entry.job.abandon(std::move(status));
    entry = Entry();  // what the callbacks own may have destructors that call back
    mutex_.Lock();
  }
  --abandoning_;
  if (Idle()) idle_.SignalAll();
  return true;
}

absl::Status Scheduler::Drain(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  while (!Idle() && clock_.Now() < deadline) clock_.Wait(idle_, mutex_, deadline);
  closed_ = true;
  if (Idle()) return absl::OkStatus();
  const int32_t running = running_;
  std::vector<Entry> rest = TakeAll();
  const size_t queued = rest.size();
  AbandonCancelled(std::move(rest));
  return absl::DeadlineExceededError(absl::StrCat("the drain deadline passed with ", queued,
                                                  " jobs queued, cancelled now, and ", running, " running"));
}

int32_t Scheduler::waiting(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return queue_.size(lane);
}

int32_t Scheduler::running() const {
  absl::MutexLock lock(&mutex_);
  return running_;
}

bool Scheduler::has_ongoing() const {
  absl::MutexLock lock(&mutex_);
  return has_ongoing_;
}

LaneSet Scheduler::LanesToStart() const {
  LaneSet lanes = {};
  for (int i = 0; i < kNumLanes; ++i) {
    const std::optional<JobId> id = queue_.Front(static_cast<Lane>(i));
    if (!id.has_value()) continue;
    const Job& job = entries_.find(*id)->second.job;
    lanes[i] = !has_ongoing_ || job.has_room == nullptr || job.has_room();
  }
  return lanes;
}

bool Scheduler::OngoingIsNext(const LaneSet& lanes) const {
  if (!has_ongoing_) return false;
  if (lanes[static_cast<int>(Lane::kInteractive)]) return ongoing_since_job_ < 1;
  return lanes == LaneSet{} || ongoing_since_job_ < kOngoingPatience;
}

void Scheduler::RunEngine() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    while (queue_.empty() && !has_ongoing_ && !stopping_) work_.Wait(&mutex_);
    if (stopping_ && !has_ongoing_) return;  // the destructor abandons what is queued
    // The timer thread does this too, but may be late; an expired job may not cost its key a turn.
    const absl::Time now = clock_.Now();
    if (std::vector<Entry> expired = TakeExpired(now); !expired.empty()) {
      AbandonExpired(std::move(expired), now);
      continue;
    }
    const LaneSet lanes = LanesToStart();
    if (OngoingIsNext(lanes)) {
      RunOngoing();
    } else {
      RunJob(lanes);
    }
    if (Idle()) idle_.SignalAll();
  }
}

void Scheduler::RunJob(const LaneSet& lanes) {
  ++running_;
  {
    Entry entry = Take(queue_.Pop(lanes));
    mutex_.Unlock();
    entry.job.run();
    entry = Entry();
    mutex_.Lock();
  }
  --running_;
  has_ongoing_ = options_.ongoing != nullptr;  // it will tell
  ongoing_since_job_ = 0;
}

void Scheduler::RunOngoing() {
  mutex_.Unlock();
  const bool more = options_.ongoing();
  mutex_.Lock();
  has_ongoing_ = more;
  ++ongoing_since_job_;
}

void Scheduler::RunTimer() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const absl::Time now = clock_.Now();
    if (std::vector<Entry> expired = TakeExpired(now); !expired.empty()) {
      AbandonExpired(std::move(expired), now);
      continue;
    }
    clock_.Wait(deadline_, mutex_, deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first);
  }
}

Scheduler::Entry Scheduler::Take(JobId id) {
  const auto found = entries_.find(id);
  Entry entry = std::move(found->second);
  entries_.erase(found);
  deadlines_.erase({entry.job.deadline, id});
  return entry;
}

std::vector<Scheduler::Entry> Scheduler::TakeExpired(absl::Time now) {
  std::vector<Entry> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const JobId id = deadlines_.begin()->second;
    queue_.Remove(id);
    expired.push_back(Take(id));
  }
  return expired;
}

std::vector<Scheduler::Entry> Scheduler::TakeAll() {
  std::vector<Entry> all;
  all.reserve(entries_.size());
  while (!queue_.empty()) all.push_back(Take(queue_.Pop()));
  return all;
}

void Scheduler::AbandonExpired(std::vector<Entry> entries, absl::Time now) {
  ++abandoning_;
  mutex_.Unlock();
  for (Entry& entry : entries) {
    entry.job.abandon(absl::DeadlineExceededError(absl::StrCat(
        "the deadline passed after ",
        absl::FormatDuration(absl::Trunc(now - entry.submitted, absl::Microseconds(1))), " in the queue")));
  }
  entries.clear();
  mutex_.Lock();
  --abandoning_;
  if (Idle()) idle_.SignalAll();
}

void Scheduler::AbandonCancelled(std::vector<Entry> entries) {
  ++abandoning_;
  mutex_.Unlock();
  for (Entry& entry : entries) entry.job.abandon(absl::CancelledError("the engine is shutting down"));
  entries.clear();
  mutex_.Lock();
  --abandoning_;
  if (Idle()) idle_.SignalAll();
}

bool Scheduler::Idle() const { return queue_.empty() && running_ == 0 && abandoning_ == 0 && !has_ongoing_; }

}  // namespace kvblend::schedule
