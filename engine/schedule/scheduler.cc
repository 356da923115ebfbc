#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/retry_delay.h"
#include "base/status_macros.h"

namespace kvblend::schedule {
namespace {

// Lanes, and priorities, are compared by what they will have had after another turn of this length, so that
// those that have just begun come in their order.
constexpr double kTurnSeconds = 0.05;

template <typename Enum>
std::string NameOf(Enum value) {
  return std::string(1, static_cast<char>('0' + static_cast<int>(value)));
}

// How much a second of work counts, by lane, and by priority within a lane.
template <typename Enum>
double SecondCounts(Enum value) {
  return 1 / kTimeShares[static_cast<size_t>(value)];
}

template <typename Enum>
double WillHaveHad(const FairShare& share, Enum value) {
  return share.Of(NameOf(value)) + kTurnSeconds * SecondCounts(value);
}

// A job takes at least this share of what is predicted.
constexpr double kSureShare = 0.5;

constexpr size_t kMostAsked = 16;  // jobs of a priority, whether there is room for them

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double SecondsLeft(const Job& job) { return job.seconds_left == nullptr ? 0 : job.seconds_left(); }

// A retry after this share of the predicted wait finds a shorter queue.
constexpr double kRetryShare = 0.5;
constexpr absl::Duration kLeastRetryDelay = absl::Milliseconds(10);
constexpr absl::Duration kMostRetryDelay = absl::Minutes(1);

/// When the job must begin, or it cannot meet its deadline.
absl::Time LatestStart(const Job& job) {
  return job.deadline - absl::Seconds(kSureShare * job.predicted_seconds);
}

std::string Rounded(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Microseconds(1)));
}

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
    AbandonAtShutdown(TakeAll());
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
    return absl::DeadlineExceededError(
        absl::StrCat("the deadline passed ", Rounded(now - job.deadline), " before submission"));
  }
  if (LatestStart(job) <= now) {
    return absl::DeadlineExceededError(absl::StrCat("the deadline is in ", Rounded(job.deadline - now),
                                                    ", but the prompt alone should take ",
                                                    Rounded(absl::Seconds(job.predicted_seconds))));
  }
  if (!job.continues) KVBLEND_RETURN_IF_ERROR(CheckRoom(job));
  const JobId id = next_id_++;
  if (queue_.size(job.lane) == 0) pace_[static_cast<size_t>(job.lane)].Moves(now);
  queue_.Push(id, job.lane, job.fairness_key, job.priority);
  Join(job);
  if (job.deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(LatestStart(job), id);
    if (deadlines_.begin()->second == id) deadline_.Signal();
  }
  if (!is_background) queued_tokens_ += job.tokens;
  queued_seconds_[static_cast<size_t>(job.lane)] += job.queue_seconds + job.continued_seconds;
  entries_.emplace(id, Entry{std::move(job), now});
  work_.Signal();
  return id;
}

absl::Status Scheduler::CheckRoom(const Job& job) const {
  const bool is_background = job.lane == Lane::kBackground;
  const int32_t queued = is_background ? queue_.size(Lane::kBackground)
                                       : queue_.size(Lane::kInteractive) + queue_.size(Lane::kBulk);
  const int32_t limit = is_background ? options_.max_queued_background : options_.max_queued;
  const bool has_spare = !is_background && !queue_.HasForeground(job.fairness_key);
  const auto most = [&](int64_t allowed) { return allowed + (has_spare ? allowed / kSpareShare : 0); };
  std::string full;
  if (queued >= most(limit)) {
    full = absl::StrCat(queued, is_background ? " background jobs" : " requests", " wait; allowed: ", limit);
  } else if (!is_background && options_.max_queued_tokens > 0 && queued > 0 &&
             queued_tokens_ + job.tokens > most(options_.max_queued_tokens)) {
    full = absl::StrCat("requests of ", queued_tokens_, " tokens wait, and this one has ", job.tokens,
                        "; allowed: ", options_.max_queued_tokens);
  }
  if (full.empty()) return absl::OkStatus();
  return WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", full)),
                        std::clamp(kRetryShare * PredictedWait(), kLeastRetryDelay, kMostRetryDelay));
}

absl::Duration Scheduler::PredictedWait() const {
  const auto of = [&, now = clock_.Now()](Lane lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return pace_[static_cast<size_t>(lane)].Of(queued_seconds_[static_cast<size_t>(lane)], now);
  };
  return std::max(of(Lane::kInteractive), of(Lane::kBulk));
}

void Scheduler::Charge(Lane lane, Priority priority, const std::string& fairness_key, double seconds) {
  absl::MutexLock lock(&mutex_);
  queue_.share(lane, priority).Charge(fairness_key, seconds);
}

bool Scheduler::Abandon(JobId id, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (!queue_.Remove(id)) return false;
  ++abandoning_;
  {
    Entry entry = Take(id);
    Leave(entry.job.lane, entry.job.priority);
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
  AbandonAtShutdown(std::move(rest));
  return absl::DeadlineExceededError(absl::StrCat("the drain deadline passed with ", queued,
                                                  " jobs queued, given up now, and ", running, " running"));
}

int32_t Scheduler::waiting(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return queue_.size(lane);
}

int32_t Scheduler::unfinished(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return Unfinished(lane);
}

int32_t Scheduler::Unfinished(Lane lane) const {
  const ByPriority& in_progress = num_in_progress_[static_cast<size_t>(lane)];
  return std::accumulate(in_progress.begin(), in_progress.end(), static_cast<int32_t>(queue_.size(lane)));
}

int32_t Scheduler::running() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int32_t>(in_progress_.size());
}

int64_t Scheduler::waiting_tokens() const {
  absl::MutexLock lock(&mutex_);
  return queued_tokens_;
}

absl::Duration Scheduler::predicted_wait() const {
  absl::MutexLock lock(&mutex_);
  return PredictedWait();
}

bool Scheduler::has_ongoing() const {
  absl::MutexLock lock(&mutex_);
  return has_ongoing_;
}

Scheduler::Slices Scheduler::slices() const {
  absl::MutexLock lock(&mutex_);
  return slices_;
}

void Scheduler::Join(const Job& job) {
  lane_share_.Join(NameOf(job.lane));
  priority_share_[static_cast<size_t>(job.lane)].Join(NameOf(job.priority));
}

void Scheduler::Leave(Lane lane, Priority priority) {
  lane_share_.Leave(NameOf(lane));
  priority_share_[static_cast<size_t>(lane)].Leave(NameOf(priority));
  if (Unfinished(lane) == 0) pace_[static_cast<size_t>(lane)].Rests();
}

std::vector<Priority> Scheduler::PrioritiesOf(Lane lane) const {
  const auto i = static_cast<size_t>(lane);
  std::vector<Priority> order;
  for (const Priority priority : kPriorities) {
    if (queue_.size(lane, priority) + num_in_progress_[i][static_cast<size_t>(priority)] > 0) {
      order.push_back(priority);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](Priority a, Priority b) {
    return WillHaveHad(priority_share_[i], a) < WillHaveHad(priority_share_[i], b);
  });
  return order;
}

std::optional<Scheduler::Turn> Scheduler::NextStart(Lane lane, const std::vector<Priority>& order,
                                                    absl::Time now, ClosedRooms& closed) {
  const auto i = static_cast<size_t>(lane);
  const bool alone = !has_ongoing_ && in_progress_.empty();
  for (const Priority priority : order) {
    const ByPriority& counts = num_in_progress_[i];
    const int32_t ahead =
        std::accumulate(counts.begin(), counts.begin() + static_cast<int>(priority) + 1, int32_t{0});
    if (ahead >= options_.max_in_progress[i]) continue;
    for (const JobId id : queue_.InOrder(lane, priority, kMostAsked)) {
      Entry& entry = entries_.find(id)->second;
      const bool is_closed = std::find(closed.begin(), closed.end(), entry.job.room) != closed.end();
      if (alone || entry.job.has_room == nullptr || (!is_closed && entry.job.has_room())) {
        return Turn{lane, priority, id, /*starts=*/true};
      }
      entry.no_room_since = std::min(entry.no_room_since, now);
      // Jobs behind it would take the room that it waits for.
      if (now - entry.no_room_since < kRoomPatience) continue;
      closed.push_back(entry.job.room);
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<Scheduler::Turn> Scheduler::NextTurnOf(Lane lane, absl::Time now, ClosedRooms& closed) {
  const std::vector<Priority> order = PrioritiesOf(lane);
  if (const std::optional<Turn> start = NextStart(lane, order, now, closed); start.has_value()) return start;
  std::optional<Turn> next;
  // Whether it waits, its place in the order, what the key has had, what is left to do.
  std::tuple<bool, size_t, double, double, JobId> least;
  for (const auto& [id, entry] : in_progress_) {
    const Job& job = entry.job;
    if (job.lane != lane) continue;
    const auto place =
        static_cast<size_t>(std::find(order.begin(), order.end(), job.priority) - order.begin());
    const double left = SecondsLeft(job);
    const std::tuple rank(left == kInfinity, place, queue_.share(lane, job.priority).Of(job.fairness_key),
                          left - kAgeing * absl::ToDoubleSeconds(now - entry.submitted), id);
    if (next.has_value() && !(rank < least)) continue;
    next = Turn{.lane = lane, .priority = job.priority, .id = id, .waits = left == kInfinity};
    least = rank;
  }
  return next;
}

std::optional<Scheduler::Turn> Scheduler::NextTurn(absl::Time now) {
  // Cancelled jobs come first, to give back at once what they hold.
  for (const auto& [id, entry] : in_progress_) {
    if (SecondsLeft(entry.job) != -kInfinity) continue;
    return Turn{.lane = entry.job.lane, .priority = entry.job.priority, .id = id, .cancelled = true};
  }
  std::optional<Turn> next;
  std::pair<bool, double> least;  // whether it waits, what the lane will have had
  ClosedRooms closed;
  std::vector<Lane> lanes = {Lane::kInteractive, Lane::kBulk, Lane::kBackground};
  std::erase_if(lanes, [&](Lane lane) { return Unfinished(lane) == 0; });
  // Asked first is who is owed time, so that what has waited too long keeps the others out of its room.
  std::stable_sort(lanes.begin(), lanes.end(),
                   [&](Lane a, Lane b) { return WillHaveHad(lane_share_, a) < WillHaveHad(lane_share_, b); });
  for (const Lane lane : lanes) {
    const std::optional<Turn> turn = NextTurnOf(lane, now, closed);
    if (!turn.has_value()) continue;
    const std::pair rank(turn->waits, WillHaveHad(lane_share_, lane));
    if (next.has_value() && rank >= least) continue;
    next = turn;
    least = rank;
  }
  return next;
}

bool Scheduler::OngoingIsNext(const std::optional<Turn>& turn) const {
  if (!has_ongoing_) return false;
  if (!turn.has_value() || turn->waits) return true;
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
  FairShare& share = queue_.share(turn.lane, turn.priority);
  const auto lane = static_cast<size_t>(turn.lane);
  int32_t& num_in_progress = num_in_progress_[lane][static_cast<size_t>(turn.priority)];
  if (turn.starts) {
    // It is in progress before it leaves the queue, so that its key never seems to be away.
    Entry& entry = entries_.find(turn.id)->second;
    share.Join(entry.job.fairness_key);
    queue_.Take(turn.id);
    in_progress_.emplace(turn.id, Take(turn.id));
    ++num_in_progress;
    pace_[lane].Moves(clock_.Now());
  }
  const Job& job = in_progress_.find(turn.id)->second.job;
  const std::string key = job.fairness_key;
  const absl::Time start = clock_.Now();
  pace_[lane].Works(start);
  mutex_.Unlock();
  const bool more = job.advance();
  mutex_.Lock();
  const absl::Duration ran = clock_.Now() - start;
  has_run_since_ongoing_ = true;
  ran_since_ongoing_ += ran;
  last_turn_ = ran;
  if (!turn.waits) {  // a waiting turn is no work and takes nobody's time
    share.Charge(key, absl::ToDoubleSeconds(ran));
    lane_share_.Charge(NameOf(turn.lane), absl::ToDoubleSeconds(ran), SecondCounts(turn.lane));
    priority_share_[lane].Charge(NameOf(turn.priority), absl::ToDoubleSeconds(ran),
                                 SecondCounts(turn.priority));
  }
  if (more) return;
  auto over = in_progress_.extract(turn.id);
  --num_in_progress;
  // A cancelled job has not taken the time that was predicted.
  pace_[lane].Ended(turn.cancelled ? 0 : over.mapped().job.queue_seconds, start + ran,
                    Unfinished(turn.lane) > 0);
  share.Leave(key);
  Leave(turn.lane, turn.priority);
  has_ongoing_ = options_.ongoing != nullptr;  // the next call will tell
  has_idle_work_ = options_.idle != nullptr;
  mutex_.Unlock();
  over = {};  // what the callbacks own may have destructors that call back
  mutex_.Lock();
}

void Scheduler::RunOngoing() {
  if (has_run_since_ongoing_) {
    ++slices_.count;
    slices_.time += ran_since_ongoing_;
  }
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
  deadlines_.erase({LatestStart(entry.job), id});
  if (entry.job.lane != Lane::kBackground) queued_tokens_ -= entry.job.tokens;
  double& seconds = queued_seconds_[static_cast<size_t>(entry.job.lane)];
  seconds -= entry.job.queue_seconds + entry.job.continued_seconds;
  if (queue_.size(entry.job.lane) == 0) seconds = 0;  // drops what rounding left
  return entry;
}

std::vector<Scheduler::Entry> Scheduler::TakeExpired(absl::Time now) {
  std::vector<Entry> expired;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const JobId id = deadlines_.begin()->second;
    queue_.Remove(id);
    expired.push_back(Take(id));
    Leave(expired.back().job.lane, expired.back().job.priority);
  }
  return expired;
}

std::vector<Scheduler::Entry> Scheduler::TakeAll() {
  std::vector<Entry> all;
  all.reserve(entries_.size());
  for (const Lane lane : {Lane::kInteractive, Lane::kBulk, Lane::kBackground}) {
    for (const Priority priority : kPriorities) {
      while (queue_.size(lane, priority) > 0) {
        Leave(lane, priority);
        all.push_back(Take(queue_.Pop(lane, priority)));
      }
    }
  }
  return all;
}

void Scheduler::AbandonExpired(std::vector<Entry> entries, absl::Time now) {
  ++abandoning_;
  mutex_.Unlock();
  for (Entry& entry : entries) {
    const std::string waited = Rounded(now - entry.submitted);
    entry.job.abandon(absl::DeadlineExceededError(
        entry.job.deadline <= now
            ? absl::StrCat("the deadline passed after ", waited, " in the queue")
            : absl::StrCat("after ", waited, " in the queue the deadline is in ",
                           Rounded(entry.job.deadline - now), ", but the prompt alone should take ",
                           Rounded(absl::Seconds(entry.job.predicted_seconds)))));
  }
  entries.clear();
  mutex_.Lock();
  --abandoning_;
  if (Idle()) idle_.SignalAll();
}

void Scheduler::AbandonAtShutdown(std::vector<Entry> entries) {
  ++abandoning_;
  mutex_.Unlock();
  for (Entry& entry : entries) entry.job.abandon(absl::UnavailableError("the engine is shutting down"));
  entries.clear();
  mutex_.Lock();
  --abandoning_;
  if (Idle()) idle_.SignalAll();
}

bool Scheduler::Idle() const {
  return queue_.empty() && in_progress_.empty() && abandoning_ == 0 && !has_ongoing_;
}

}  // namespace kvblend::schedule
