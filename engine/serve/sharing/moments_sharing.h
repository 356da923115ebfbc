// What replicas that share chunks tell each other of what they have learned from
// (engine/kv/moments_messages.h): each leaves its moments on a board that all of them see
// (engine/store/replica_board.h), and takes those of the others for its fits.
//
// Nothing is counted twice: a replica has one place on the board, which its next revision replaces; a learner
// whose moments outlive its process keeps its name with them; and what stands under its own name is not read.
// Nothing depends on the board: what can't be left there is left at the next turn, and what can't be had is
// not in the fit.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "engine/kv/correction_learner.h"
#include "engine/kv/moments_messages.h"
#include "engine/store/replica_board.h"

namespace kvblend {

/// For the thread that learns, but for stats(), which is thread-safe. Calls may block as the board's do.
class MomentsSharing final : public kv::OtherPairs {
 public:
  /// A fit takes the moments of at most so many other servers; of more, those that have seen the most. It has
  /// the moments of one layer of one server in memory at a time.
  static constexpr int32_t kMaxReplicas = 16;
  /// What a server has left on the board expires after so many intervals between writes without a sign of
  /// life, but not before a minute has passed.
  static constexpr int32_t kTurnsToLive = 60;

  struct Options {
    absl::Duration interval = absl::Minutes(1);  // between two turns, about
    std::function<absl::Time()> now = SteadyNow;
  };
  /// Since start, but for the first two.
  struct Stats {
    int64_t replicas_found = 0;   // others, at the last look
    int64_t replicas_merged = 0;  // others whose moments the last fit had
    int64_t published = 0;        // times that its own moments were left on the board
    int64_t refused = 0;          // notes and parts that were damaged, foreign, incomplete or out of date
    int64_t failures = 0;         // times that the board could not be written or read
  };

  /// `board` must outlive it. `left_before`: something of an earlier process may stand under this name.
  /// REQUIRES: replica != 0.
  MomentsSharing(store::ReplicaBoard& board, const kv::LearnerOptions& learner, uint64_t replica,
                 bool left_before, const Options& options);

  /// A name that no other replica has. Never 0.
  static uint64_t NewReplica();

  /// When Publish and Look, or Withdraw, are to be called again.
  absl::Time next_turn() const { return next_turn_; }
  void EndTurn();

  /// Leaves what was seen on the board if that has grown enough since the last time (a thirty-second part, or
  /// 64 chunks) and 4 MiB per second are not exceeded; otherwise gives a sign of life, and prolongs what
  /// stands there when it is time to. `ends`: any growth, at once, and with the sign that this server has
  /// ended, which others do not wait for then. keep_going is asked between parts.
  void Publish(const kv::LearnerState& state, bool ends, absl::FunctionRef<bool()> keep_going);
  /// Takes what it has left off the board. When that fails, the next call tries again.
  void Withdraw();

  /// Reads who else is there. What can't be read now is as it was.
  void Look();
  /// The last fit had what is seen now.
  void NoteFit();
  /// There has been no fit, and what others have left up to now is of no use: only those count from here on
  /// that give a sign of life.
  void Forget();

  // OtherPairs, as of the last look. A replica whose moments can't be had is left out from then on: until its
  // next revision if they are refused, otherwise until the next look.
  Seen seen() const override;
  bool AddTo(int32_t layer, kv::PairMoments& fitted, kv::PairMoments& kept_back,
             absl::FunctionRef<bool()> keep_going) override;

  Stats stats() const;

 private:
  store::ReplicaBoard::Place PlaceOf(uint64_t replica) const;
  absl::Status PutAll(const kv::LearnerState& state, bool ends, absl::FunctionRef<bool()> keep_going);
  absl::Status PutNote(bool ends);
  absl::Status AddOf(const kv::MomentsNote& note, int32_t layer, kv::PairMoments& fitted,
                     kv::PairMoments& kept_back);
  void Count(int64_t Stats::*counter);
  void Set(int64_t Stats::*gauge, int64_t value);
  void Failed(const char* what, const absl::Status& status);
  void Works();
  void Refuse(const std::string& replica, const absl::Status& why);

  store::ReplicaBoard& board_;
  const kv::LearnerOptions learner_;
  const uint64_t replica_;
  const Options options_;
  const std::string space_;
  const absl::Duration pace_;  // of publishing
  const absl::Duration ttl_;

  absl::Time next_turn_ = absl::InfinitePast();
  bool left_;           // something may stand on the board
  bool whole_ = false;  // all of what was published last stands there
  kv::MomentsNote published_;
  int64_t published_chunks_ = 0;  // that it is of
  uint64_t revision_ = 0;
  absl::Time publish_at_ = absl::InfinitePast();  // not before
  absl::Time prolong_at_ = absl::InfiniteFuture();
  bool said_failing_ = false;

  int64_t forgotten_until_ = std::numeric_limits<int64_t>::min();  // as MomentsNote::alive_at
  std::vector<kv::MomentsNote> others_;
  std::set<std::string> refused_notes_;         // replicas, at the last look
  std::map<uint64_t, uint64_t> refused_parts_;  // replica -> revision
  std::map<uint64_t, int64_t> fitted_at_fit_;   // replica -> chunks, of those that the last fit had
  bool has_fit_ = false;                        // since the start

  mutable absl::Mutex mutex_;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend
