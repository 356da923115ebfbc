#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace kvblend::schedule {

namespace {

// What a second of a lane's work counts.
constexpr std::array<double, kNumLanes> kSecondCounts = {1.0 / 16, 1.0 / 4, 1};

// Lanes are compared by what they will have had after another turn of this length, so that lanes that have just begun
// come in their order.
constexpr double kTurnSeconds = 0.05;

std::string NameOf(Lane lane) { return std::string(1, static_cast<char>('0' + static_cast<int>(lane))); }

Scheduler::Options Checked(Scheduler::Options options) {
  options.max_queued = std::max(options.max_queued, 1);
  options.max_queued_background = std::max(options.max_queued_background, 1);
  for (int32_t& count : options.max_in_progress) count = std::max(count, 1);
  return options;
}

}  // namespace

Scheduler::Scheduler(const Options& options, Clock& clock)
    : options_(Checked(options)),
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
  lane_share_.Join(NameOf(job.lane));
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
    lane_share_.Leave(NameOf(entry.job.lane));
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
  const size_t running = in_progress_.size();
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
  return static_cast<int32_t>(in_progress_.size());
}

bool Scheduler::has_ongoing() const {
  absl::MutexLock lock(&mutex_);
  return has_ongoing_;
}

bool Scheduler::MayStart(Lane lane) const {
  const int i = static_cast<int>(lane);
  if (num_in_progress_[i] >= options_.max_in_progress[i]) return false;
  const std::optional<JobId> id = queue_.Front(lane);
  if (!id.has_value()) return false;
  const Job& job = entries_.find(*id)->second.job;
  return (!has_ongoing_ && in_progress_.empty()) || job.has_room == nullptr || job.has_room();
}

std::optional<Scheduler::Turn> Scheduler::NextTurnOf(Lane lane, absl::Time now) const {
  if (MayStart(lane)) return Turn{lane, *queue_.Front(lane), /*starts=*/true};
  std::optional<Turn> next;
  std::tuple<double, double, JobId> least;  // what the key has had, what is left to do
  for (const auto& [id, entry] : in_progress_) {
    if (entry.job.lane != lane) continue;
    const double left = entry.job.seconds_left == nullptr ? 0 : entry.job.seconds_left();
    const std::tuple order(queue_.share(lane).Of(entry.job.fairness_key),
                           left - kAgeing * absl::ToDoubleSeconds(now - entry.submitted), id);
    if (next.has_value() && !(order < least)) continue;
    next = Turn{lane, id, /*starts=*/false};
    least = order;
  }
  return next;
}

std::optional<Scheduler::Turn> Scheduler::NextTurn(absl::Time now) const {
  std::optional<Turn> next;
  double least = 0;
  for (const Lane lane : {Lane::kInteractive, Lane::kBulk, Lane::kBackground}) {
    const std::optional<Turn> turn = NextTurnOf(lane, now);
    if (!turn.has_value()) continue;
    const double will_have_had =
        lane_share_.Of(NameOf(lane)) + kTurnSeconds * kSecondCounts[static_cast<int>(lane)];
    if (next.has_value() && will_have_had >= least) continue;
    next = turn;
    least = will_have_had;
  }
  return next;
}

bool Scheduler::OngoingIsNext(const std::optional<Turn>& turn) const {
  if (!has_ongoing_) return false;
  if (!turn.has_value()) return true;
  if (!has_run_since_ongoing_) return false;
  if (options_.slice == nullptr) return true;
  // The next turn may take as long as the last one.
  return ran_since_ongoing_ + last_turn_ / 2 >= options_.slice(turn->lane);
}

void Scheduler::RunEngine() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    while (queue_.empty() && in_progress_.empty() && !has_ongoing_ && !MayIdle() && !stopping_) {
      work_.Wait(&mutex_);
    }
    // The destructor abandons what is queued.
    if (stopping_ && in_progress_.empty() && !has_ongoing_) return;
    // The timer thread does this too, but may be late; an expired job may not cost its key a turn.
    const absl::Time now = clock_.Now();
    if (std::vector<Entry> expired = TakeExpired(now); !expired.empty()) {
      AbandonExpired(std::move(expired), now);
      continue;
    }
    const std::optional<Turn> turn = NextTurn(now);
    if (OngoingIsNext(turn)) {
      RunOngoing();
    } else if (turn.has_value()) {
      Run(*turn);
    } else if (MayIdle()) {
      RunIdle();
    }
    if (Idle()) idle_.SignalAll();
  }
}

void Scheduler::Run(const Turn& turn) {
  FairShare& share = queue_.share(turn.lane);
  if (turn.starts) {
    // In progress before it leaves the queue, so that its key never seems to be away.
    Entry& entry = entries_.find(turn.id)->second;
    share.Join(entry.job.fairness_key);
    queue_.Pop(turn.lane);
    in_progress_.emplace(turn.id, Take(turn.id));
    ++num_in_progress_[static_cast<int>(turn.lane)];
  }
  const Job& job = in_progress_.find(turn.id)->second.job;
  const std::string key = job.fairness_key;
  const absl::Time start = clock_.Now();
  mutex_.Unlock();
  const bool more = job.advance();
  mutex_.Lock();
  const absl::Duration ran = clock_.Now() - start;
  has_run_since_ongoing_ = true;
  ran_since_ongoing_ += ran;
  last_turn_ = ran;
  share.Charge(key, absl::ToDoubleSeconds(ran));
  lane_share_.Charge(NameOf(turn.lane), absl::ToDoubleSeconds(ran),
                     kSecondCounts[static_cast<int>(turn.lane)]);
  if (more) return;
  auto over = in_progress_.extract(turn.id);
  --num_in_progress_[static_cast<int>(turn.lane)];
  share.Leave(key);
  lane_share_.Leave(NameOf(turn.lane));
  has_ongoing_ = options_.ongoing != nullptr;  // it will tell
  has_idle_work_ = options_.idle != nullptr;
  mutex_.Unlock();
  over = {};  // what the callbacks own may have destructors that call back
  mutex_.Lock();
}

void Scheduler::RunOngoing() {
  mutex_.Unlock();
  const bool more = options_.ongoing();
  mutex_.Lock();
  has_ongoing_ = more;
  has_idle_work_ = options_.idle != nullptr;
  has_run_since_ongoing_ = false;
  ran_since_ongoing_ = absl::ZeroDuration();
}

void Scheduler::RunIdle() {
  mutex_.Unlock();
  const bool more = options_.idle();
  mutex_.Lock();
  has_idle_work_ = more;
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
    lane_share_.Leave(NameOf(expired.back().job.lane));
  }
  return expired;
}

std::vector<Scheduler::Entry> Scheduler::TakeAll() {
  std::vector<Entry> all;
  all.reserve(entries_.size());
  for (const Lane lane : {Lane::kInteractive, Lane::kBulk, Lane::kBackground}) {
    while (queue_.size(lane) > 0) {
      lane_share_.Leave(NameOf(lane));
      all.push_back(Take(queue_.Pop(lane)));
    }
  }
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

bool Scheduler::Idle() const {
  return queue_.empty() && in_progress_.empty() && abandoning_ == 0 && !has_ongoing_;
}

}  // namespace kvblend::schedule
