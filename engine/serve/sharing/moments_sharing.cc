#include "engine/serve/sharing/moments_sharing.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

constexpr double kPublishBytesPerSecond = 4 << 20;
constexpr absl::Duration kLeastTimeToLive = absl::Minutes(1);
constexpr int64_t kGrowthShare = 32, kMostGrowth = 64;

std::string NameOf(uint64_t replica) { return absl::StrFormat("%016x", replica); }

absl::Duration PaceOf(const kv::LearnerOptions& learner, absl::Duration interval) {
  const double bytes =
      static_cast<double>(kv::NumMomentsParts(learner)) * static_cast<double>(kv::MomentsPartBytes(learner));
  return std::max(interval, absl::Seconds(bytes / kPublishBytesPerSecond));
}

int64_t ChunksOf(const kv::LearnerState& state) { return state.fitted_chunks + state.kept_back_chunks; }

}  // namespace

uint64_t MomentsSharing::NewReplica() {
  std::random_device device;
  uint64_t replica = 0;
  while (replica == 0) replica = uint64_t{device()} << 32 | device();
  return replica;
}

MomentsSharing::MomentsSharing(store::ReplicaBoard& board, const kv::LearnerOptions& learner,
                               uint64_t replica, bool left_before, const Options& options)
    : board_(board),
      learner_(learner),
      replica_(replica),
      options_(options),
      space_(kv::MomentsSpace(learner)),
      pace_(PaceOf(learner, options.interval)),
      ttl_(std::max(kLeastTimeToLive, absl::Ceil(kTurnsToLive * pace_, absl::Seconds(1)))),
      left_(left_before) {}

store::ReplicaBoard::Place MomentsSharing::PlaceOf(uint64_t replica) const {
  return {space_, NameOf(replica)};
}

void MomentsSharing::EndTurn() {
  // Replicas that were started together should not write together for ever.
  const double late = static_cast<double>(replica_ % 256) / 1024;
  next_turn_ = options_.now() + options_.interval * (1 + late);
}

// --- what is left for others

void MomentsSharing::Publish(const kv::LearnerState& state, bool ends, absl::FunctionRef<bool()> keep_going) {
  const int64_t chunks = ChunksOf(state), grown = chunks - published_chunks_;
  if (chunks == 0) return;
  const absl::Time now = options_.now();
  const int64_t enough = ends ? 1 : std::clamp<int64_t>(chunks / kGrowthShare, 1, kMostGrowth);
  if (whole_ && now >= prolong_at_ && grown < enough) {
    const absl::StatusOr<bool> prolonged =
        board_.Prolong(PlaceOf(replica_), kv::NumMomentsParts(learner_), ttl_);
    if (!prolonged.ok()) return Failed("kept on the board", prolonged.status());
    Works();
    whole_ = *prolonged;  // otherwise some parts were evicted, and all are written again
    prolong_at_ = now + ttl_ / 3;
  }
  if ((whole_ && grown < enough) || (now < publish_at_ && !ends)) {
    if (!whole_) return;
    const absl::Status alive = PutNote(ends);
    return alive.ok() ? Works() : Failed("kept on the board", alive);
  }
  publish_at_ = now + pace_;
  left_ = true;
  // Revisions grow, and go on growing in the next process.
  revision_ = std::max(revision_ + 1, static_cast<uint64_t>(std::max<int64_t>(absl::ToUnixMicros(now), 0)));
  const absl::Status put = PutAll(state, ends, keep_going);
  if (absl::IsCancelled(put)) return;
  if (!put.ok()) return Failed("published", put);
  Works();
  whole_ = true;
  published_chunks_ = chunks;
  prolong_at_ = now + ttl_ / 3;
  Count(&Stats::published);
}

absl::Status MomentsSharing::PutAll(const kv::LearnerState& state, bool ends,
                                    absl::FunctionRef<bool()> keep_going) {
  const store::ReplicaBoard::Place place = PlaceOf(replica_);
  for (int32_t part = 0; part < kv::NumMomentsParts(learner_); ++part) {
    if (!keep_going()) return absl::CancelledError("stopped");
    KVBLEND_RETURN_IF_ERROR(
        board_.PutPart(place, part, kv::EncodeMomentsPart(learner_, state, revision_, part), ttl_));
  }
  published_ = kv::NoteOf(state, revision_);
  return PutNote(ends);
}

absl::Status MomentsSharing::PutNote(bool ends) {
  kv::MomentsNote note = published_;
  note.alive_at = absl::ToUnixMicros(options_.now());
  note.ended = ends;
  return board_.PutNote(PlaceOf(replica_), kv::EncodeMomentsNote(learner_, note), ttl_);
}

void MomentsSharing::Withdraw() {
  whole_ = false;
  published_chunks_ = 0;
  publish_at_ = absl::InfinitePast();
  if (!left_) return;
  const absl::Status removed = board_.Remove(PlaceOf(replica_), kv::NumMomentsParts(learner_));
  if (!removed.ok()) return Failed("withdrawn", removed);
  Works();
  left_ = false;
}

// --- what others have left

void MomentsSharing::Look() {
  absl::StatusOr<std::vector<store::ReplicaBoard::Note>> notes = board_.Notes(space_, kv::MomentsNoteBytes());
  if (!notes.ok()) return Failed("looked for", notes.status());
  bool all_answer = true;
  const std::vector<kv::MomentsNote> before = std::exchange(others_, {});
  const std::set<std::string> refused_before = std::exchange(refused_notes_, {});
  std::map<uint64_t, uint64_t> refused_parts;
  for (const store::ReplicaBoard::Note& found : *notes) {
    if (found.replica == NameOf(replica_)) continue;
    if (absl::IsUnavailable(found.bytes.status())) {
      all_answer = false;
      Failed("read", found.bytes.status());
      const auto known = std::find_if(before.begin(), before.end(), [&](const kv::MomentsNote& note) {
        return NameOf(note.replica) == found.replica;
      });
      if (known != before.end()) others_.push_back(*known);
      continue;
    }
    absl::StatusOr<kv::MomentsNote> note =
        found.bytes.ok() ? kv::DecodeMomentsNote(learner_, *found.bytes) : found.bytes.status();
    if (note.ok() && NameOf(note->replica) != found.replica) {
      note = absl::InvalidArgumentError(absl::StrCat("it is of replica ", NameOf(note->replica)));
    }
    if (!note.ok()) {
      refused_notes_.insert(found.replica);
      if (refused_before.count(found.replica) == 0) Refuse(found.replica, note.status());
      continue;
    }
    if (const auto refused = refused_parts_.find(note->replica);
        refused != refused_parts_.end() && refused->second == note->revision) {
      refused_parts.insert(*refused);
      continue;
    }
    if (note->alive_at > forgotten_until_) others_.push_back(*note);
  }
  if (all_answer) Works();
  refused_parts_ = std::move(refused_parts);  // of replicas that are still there
  std::sort(others_.begin(), others_.end(), [](const kv::MomentsNote& a, const kv::MomentsNote& b) {
    return std::pair(-a.tokens, a.replica) < std::pair(-b.tokens, b.replica);
  });
  if (others_.size() > kMaxReplicas) others_.resize(kMaxReplicas);
  Set(&Stats::replicas_found, static_cast<int64_t>(others_.size()));
}

kv::OtherPairs::Seen MomentsSharing::seen() const {
  Seen seen{.has_fit = has_fit_};
  for (const kv::MomentsNote& note : others_) {
    seen.learners += note.ended ? 0 : 1;
    seen.fitted_chunks += note.fitted_chunks;
    seen.kept_back_chunks += note.kept_back_chunks;
    seen.tokens += note.tokens;
    seen.weight += note.weight;
    const auto at_fit = fitted_at_fit_.find(note.replica);
    const int64_t had = at_fit == fitted_at_fit_.end() ? 0 : at_fit->second;
    seen.new_chunks += std::max<int64_t>(0, note.fitted_chunks - had);
  }
  return seen;
}

void MomentsSharing::NoteFit() {
  has_fit_ = true;
  fitted_at_fit_.clear();
  for (const kv::MomentsNote& note : others_) fitted_at_fit_[note.replica] = note.fitted_chunks;
  Set(&Stats::replicas_merged, static_cast<int64_t>(others_.size()));
}

void MomentsSharing::Forget() {
  fitted_at_fit_.clear();
  has_fit_ = false;
  forgotten_until_ = absl::ToUnixMicros(options_.now());
  others_.clear();
  Set(&Stats::replicas_found, 0);
}

bool MomentsSharing::AddTo(int32_t layer, kv::PairMoments& fitted, kv::PairMoments& kept_back,
                           absl::FunctionRef<bool()> keep_going) {
  for (auto note = others_.begin(); note != others_.end(); ++note) {
    if (!keep_going()) return false;
    const absl::Status added = AddOf(*note, layer, fitted, kept_back);
    if (added.ok()) continue;
    if (absl::IsUnavailable(added)) {
      Failed("read", added);
    } else {
      refused_parts_[note->replica] = note->revision;
      Refuse(NameOf(note->replica), added);
    }
    others_.erase(note);
    return false;
  }
  return true;
}

absl::Status MomentsSharing::AddOf(const kv::MomentsNote& note, int32_t layer, kv::PairMoments& fitted,
                                   kv::PairMoments& kept_back) {
  for (const bool judges : {false, true}) {
    const int32_t part = 2 * layer + (judges ? 1 : 0);
    KVBLEND_ASSIGN_OR_RETURN(const std::string bytes,
                             board_.Part(PlaceOf(note.replica), part, kv::MomentsPartBytes(learner_)));
    KVBLEND_ASSIGN_OR_RETURN(const kv::PairMoments moments,
                             kv::DecodeMomentsPart(learner_, note, part, bytes));
    (judges ? kept_back : fitted).Merge(moments);
  }
  return absl::OkStatus();
}

// --- counting

void MomentsSharing::Count(int64_t Stats::*counter) {
  absl::MutexLock lock(&mutex_);
  ++(stats_.*counter);
}

void MomentsSharing::Set(int64_t Stats::*gauge, int64_t value) {
  absl::MutexLock lock(&mutex_);
  stats_.*gauge = value;
}

void MomentsSharing::Failed(const char* what, const absl::Status& status) {
  Count(&Stats::failures);
  if (std::exchange(said_failing_, true)) return;
  spdlog::warn(
      "moments of learned corrections could not be {}; this replica goes on alone and tries again: {}", what,
      std::string(status.message()));
}

void MomentsSharing::Works() {
  if (std::exchange(said_failing_, false)) spdlog::info("moments of learned corrections are shared again");
}

void MomentsSharing::Refuse(const std::string& replica, const absl::Status& why) {
  Count(&Stats::refused);
  spdlog::warn("what replica {} has learned from is not taken: {}", replica, std::string(why.message()));
}

MomentsSharing::Stats MomentsSharing::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace kvblend
