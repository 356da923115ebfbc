// Runs jobs on the engine thread. Several jobs are in progress at a time, and take turns there.
//
// Life of a job:
//
//     Submit -> queued --> in progress: advance, advance, ... until there is no more to do    on the engine thread
//                  |
//                  +-----> abandon    Abandon (caller's thread), its deadline (timer or engine thread),
//                                     Drain's deadline or the destructor (caller's thread)
//
// For every job that Submit accepts, either `advance` is called, until it returns false, or `abandon`,
// exactly once; for one that it refuses, neither. No lock is held during either, so both may call Submit and
// Abandon; they may not call Drain or destroy the scheduler. A timer thread abandons a waiting job at its
// deadline however long the running ones take; a job whose deadline has passed never starts. A job in
// progress is never interrupted: it watches its Cancellation.
//
// What comes next:
//  - Lanes share the time 16 : 4 : 1; a lane that has nothing to do leaves its share to the others.
//  - Within a lane the priorities share its time in the same way: the urgent go first, but the others are
//    owed a turn for every 4 or 16 that they let pass. So none starves, however much the others ask for.
//  - A lane's next job (job_queue.h), the one of the priority that is owed most, is started as soon as it has
//    room and fewer than max_in_progress jobs of its lane and of its priority or a higher one are in
//    progress.
//  - Within a priority the fairness key that has had the least time goes on, and of its jobs the one with the
//    least left to do. kAgeing times the time since a job was submitted counts as done, so that a job of s
//    seconds that has waited s / kAgeing is no longer overtaken by later ones.
//  - A job in progress that waits for something on its way has no turn while there is anything else to do.
//    One that has been cancelled has the next turn.
//
// Jobs may leave shared work behind (a batch that is being decoded): Options::ongoing does a little of it at
// a time, on the engine thread. Jobs run for a slice between two turns of it; see Options::slice. A job may
// have to wait until that work has room for what the job will leave behind (Job::has_room). Other jobs for
// which there is room then begin before it, but only for kRoomPatience. After that its lane waits behind it,
// other priorities too, and so do jobs of lanes that are owed less time and ask for the same room
// (Job::room), so that a large job is not overtaken for ever.
// Charge lets keys pay for the shared work as they do for their jobs.
//
// A full queue takes a few jobs more (kSpareShare) of keys that have none waiting, so that whoever fills it
// does not keep others out.
//
// Where there are neither jobs nor shared work, Options::idle is called.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/job_queue.h"
#include "engine/schedule/queue_pace.h"

namespace kvblend::schedule {

struct Job {
  std::string fairness_key;
  Lane lane = Lane::kInteractive;
  Priority priority = Priority::kNormal;
  absl::Time deadline = absl::InfiniteFuture();
  /// How long it will take at the least, from its start until it is over; 0: not known. When half of that no
  /// longer fits before its deadline, a waiting job is abandoned: predictions err, but not by so much.
  double predicted_seconds = 0;
  /// The predicted time that it adds to its lane's queue while it waits. It may be wrong by a factor that is
  /// the same for all jobs of the lane: the factor is learned from jobs that end. `continued_seconds` is that
  /// of the jobs that will continue it.
  double queue_seconds = 0, continued_seconds = 0;
  int64_t tokens = 0;  // for Options::max_queued_tokens
  /// Goes on with a job accepted before (the next chunk of a long put, so that others get their turn in
  /// between): not refused for a full queue or for draining.
  bool continues = false;
  /// Asked on the engine thread whenever the job might begin and others are in progress, or there is ongoing
  /// work; false: later. The scheduler's lock is held: it may not call back. Null: always.
  std::function<bool()> has_room = nullptr;
  /// Which room that is; jobs with the same number compete for the same room.
  int32_t room = 0;
  /// Does a little, and returns whether there is more to do.
  std::function<bool()> advance;
  /// How many seconds of work are left of a job in progress, as far as that is known; infinite: it waits for
  /// something that is on its way; less than any number: it has been cancelled and will end. Called as
  /// has_room is. Null: 0.
  std::function<double()> seconds_left = nullptr;
  std::function<void(absl::Status)> abandon;
};

class Scheduler {
 public:
  struct Options {
    int32_t max_queued = 64;              // waiting interactive and bulk jobs together; at least 1
    int64_t max_queued_tokens = 0;        // of all of them, but one job may always wait; 0: any number
    int32_t max_queued_background = 256;  // waiting background jobs; at least 1
    std::array<int32_t, kNumLanes> max_in_progress = {1, 1, 1};  // jobs of each lane and priority; at least 1
    /// Does a little of the work that jobs have left behind and returns whether more is left. Called after
    /// every job, and again as long as there is more. Null: jobs leave nothing behind.
    std::function<bool()> ongoing = nullptr;
    /// For how long jobs of a lane run between two turns of `ongoing`, at least one `advance`, and to the
    /// nearest one. Called as has_room is. Null: one `advance`.
    std::function<absl::Duration(Lane)> slice = nullptr;
    /// Does a little work that no client waits for, and returns whether there is more. Called on the engine
    /// thread while there is nothing else to do, after jobs and `ongoing` have had a turn, until it returns
    /// false; not while draining. A new job waits for at most one call of it. Null: there is no such work.
    std::function<bool()> idle = nullptr;
  };
  static constexpr double kAgeing = 1;
  static constexpr int32_t kSpareShare = 8;  // one more for every so many that the queue takes
  static constexpr absl::Duration kRoomPatience = absl::Seconds(5);

  /// Starts the threads. `clock` must outlive the scheduler.
  explicit Scheduler(const Options& options, Clock& clock = Clock::System());
  /// Abandons queued jobs with kUnavailable and waits for the running one and for what is left behind.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// The job may already run, or be over, when this returns.
  /// kResourceExhausted: the lane's queue is full; with a retry delay (base/retry_delay.h), in which half of
  /// it is predicted to be done. kUnavailable: draining. kDeadlineExceeded: the deadline has passed, or
  /// cannot be met any more.
  /// REQUIRES: both functions are set.
  absl::StatusOr<JobId> Submit(Job job);

  /// Charges a key with so many seconds of ongoing work.
  void Charge(Lane lane, Priority priority, const std::string& fairness_key, double seconds);

  /// Abandons a queued job with `status` before returning true; false, without effect, when it runs, is over
  /// or is being abandoned. The queue slot is free at once. REQUIRES: `status` is an error.
  bool Abandon(JobId id, absl::Status status);

  /// Refuses new interactive and bulk jobs and waits until all accepted jobs, background jobs behind them
  /// included, and what they left behind are done; then refuses everything. At `deadline` abandons the queued
  /// ones with kUnavailable and returns kDeadlineExceeded without waiting for a running job or for what is
  /// left behind. May be called again, with another deadline.
  absl::Status Drain(absl::Time deadline);

  int32_t waiting(Lane lane) const;
  int32_t unfinished(Lane lane) const;  // those waiting and those in progress
  int32_t running() const;              // jobs in progress
  int64_t waiting_tokens() const;       // of waiting interactive and bulk jobs
  /// How long these jobs are predicted to take together, including everything else that is done meanwhile.
  absl::Duration predicted_wait() const;
  bool has_ongoing() const;

  /// How often and for how long jobs have run between two turns of the ongoing work.
  struct Slices {
    int64_t count = 0;
    absl::Duration time;
  };
  Slices slices() const;

 private:
  struct Entry {
    Job job;
    absl::Time submitted;
    absl::Time no_room_since = absl::InfiniteFuture();  // since it was first passed over
  };

  void RunEngine();
  /// What has the next turn: a job to start, or one in progress.
  struct Turn {
    Lane lane;
    Priority priority;
    JobId id;
    bool starts = false;
    bool waits = false;      // for something that is on its way: there is nothing else to do
    bool cancelled = false;  // it ends
  };
  using ByPriority = std::array<int32_t, kPriorities.size()>;
  std::optional<Turn> NextTurn(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Rooms that nobody may take any more, because someone has waited for them too long.
  using ClosedRooms = std::vector<int32_t>;
  std::optional<Turn> NextTurnOf(Lane lane, absl::Time now, ClosedRooms& closed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The priorities of a lane that have something to do, the one that is owed most first.
  std::vector<Priority> PrioritiesOf(Lane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Adds to `closed` the room that the lane waits for.
  std::optional<Turn> NextStart(Lane lane, const std::vector<Priority>& order, absl::Time now,
                                ClosedRooms& closed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A job begins, or ceases, to wait or to be in progress.
  void Join(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Lane lane, Priority priority) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run(const Turn& turn) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunOngoing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return has_idle_work_ && !draining_; }
  /// Whether what was left behind comes before this turn.
  bool OngoingIsNext(const std::optional<Turn>& turn) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimer();

  absl::Status CheckRoom(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration PredictedWait() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry Take(JobId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Entry> TakeExpired(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Entry> TakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Lets go of the mutex while the callbacks run.
  void AbandonExpired(std::vector<Entry> entries, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbandonAtShutdown(std::vector<Entry> entries) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int32_t Unfinished(Lane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Clock& clock_;

  mutable absl::Mutex mutex_;
  absl::CondVar work_;      // the engine thread waits: a job, or stopping_
  absl::CondVar deadline_;  // the timer thread waits: an earlier deadline, or stopping_
  absl::CondVar idle_;      // Drain waits
  JobQueue queue_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<JobId, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // the queued ones
  std::map<JobId, Entry> in_progress_ ABSL_GUARDED_BY(mutex_);  // stay where they are until they are over
  std::array<ByPriority, kNumLanes> num_in_progress_ ABSL_GUARDED_BY(mutex_) = {};
  FairShare lane_share_ ABSL_GUARDED_BY(mutex_);  // of lanes by name, seconds over their weights
  std::array<FairShare, kNumLanes> priority_share_
      ABSL_GUARDED_BY(mutex_);                         // the same of each lane's priorities
  int64_t queued_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // interactive and bulk
  std::array<double, kNumLanes> queued_seconds_
      ABSL_GUARDED_BY(mutex_) = {};  // of each lane, as jobs count it
  std::array<QueuePace, kNumLanes> pace_ ABSL_GUARDED_BY(mutex_);
  // The queued jobs that have a deadline, by when they must begin at the latest.
  absl::btree_set<std::pair<absl::Time, JobId>> deadlines_ ABSL_GUARDED_BY(mutex_);
  JobId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool has_ongoing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_idle_work_ ABSL_GUARDED_BY(mutex_) = false;             // there may be some
  bool has_run_since_ongoing_ ABSL_GUARDED_BY(mutex_) = false;     // a job
  absl::Duration ran_since_ongoing_ ABSL_GUARDED_BY(mutex_) = {};  // jobs
  absl::Duration last_turn_ ABSL_GUARDED_BY(mutex_) = {};          // of a job
  Slices slices_ ABSL_GUARDED_BY(mutex_);
  int32_t abandoning_ ABSL_GUARDED_BY(mutex_) = 0;  // threads inside `abandon` callbacks
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Last: they start when all of the above exists.
  std::thread engine_thread_;
  std::thread timer_thread_;
};

}  // namespace kvblend::schedule
