// The sequences that are being decoded together (continuous batching: they join and leave between steps; Yu
// et al., Orca, OSDI 2022). A step reads the weights once for all of them. Each gets one token per step, and
// more where guesses are right: tokens that are likely to come next (engine/generate/prompt_lookup.h) are run
// in the same step, and those that the model would have chosen itself are kept. A sequence gets the same
// tokens with guesses as without.
//
// Pages are taken as they are needed; what several sequences hold together (shared_prefixes.h) counts once. A
// prompt is let in when there are pages for it and for what the answers are expected to become
// (answer_lengths.h), at most their max_tokens. Where they become longer than the pages allow, one is
// preempted (page_turns.h): its pages go, and it gets its KV back, and goes on, when there is room again,
// before any new prompt of its party is let in (Kwon et al., PagedAttention, SOSP 2023, preempt by
// recomputation too). A prompt that is being prefilled is not interrupted, so even the first answer may have
// to give way to it; then it goes on when that prompt is done, whose answer makes room for it.
//
// A party that has nothing in the batch does not wait for the end of others' long answers. After kPatience,
// in which one may end, some of these are preempted for its first one. A newcomer does not pass a preempted
// answer whose party has nothing running. So no party waits for ever, and the first answer of a party goes on
// before its others.
//
// Two sums of pages keep this going:
//  - Held, what exists now (PagesHeld), never exceeds max_pages: before a step that would, some are preempted
//    (MakeRoom).
//  - Claimed, what all that were let in are expected to hold in the end (PagesClaimed), plus what one more
//    claims, is at most max_pages when that one is let in or back. Answers that become longer than expected
//    may exceed it; then it is the first rule that preempts.
// Each holder of shared pages counts them, so both sums take off once what is counted more than once: `held -
// distinct` of the pool. For example, of 100 pages two answers hold 20 each, 10 of them together, and each
// claims 30: 30 are held and 50 claimed, and a prompt that claims 50 is let in, one of 51 is not.
//
// A step has at most max_sequences sequences. Where somebody's answers have all of these rows, some of others
// are let in besides, and then sequences take turns; see step_turns.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/generate/draft_length.h"
#include "engine/kv/page_pool.h"
#include "engine/serve/sequences/answer_lengths.h"
#include "engine/serve/sequences/decoding_sequence.h"
#include "engine/serve/sequences/page_turns.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/sequences/step_turns.h"
#include "engine/serve/task.h"

namespace kvblend {

/// For the engine thread only, except counts(). Runner and pool must outlive it.
class DecodeBatch {
 public:
  struct Options {
    int32_t max_sequences = 8;     // in one step
    int64_t max_pages = 0;         // of all sequences together, their prompts' while these are prefilled too
    int32_t max_draft_tokens = 0;  // guessed tokens of one sequence in one step
    int32_t max_draft_rows = 0;    // rows of a step up to which guesses are added
  };

  /// REQUIRES: max_pages are enough for the longest sequence, and the pool has them for this batch alone.
  DecodeBatch(PromptRunner& runner, const kv::PagePool& pool, const Options& options)
      : runner_(runner), pool_(pool), options_(options), turns_(options.max_sequences) {}

  /// Whether nothing is being decoded, nor waits to be again.
  bool empty() const { return members_.empty() && paused_.empty(); }
  /// For how long since its submission the first answer of a party waits for pages before others give theirs
  /// up, which costs these about as much.
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);

  /// Whether the task's prompt may be prefilled. An empty batch takes any.
  bool HasRoomFor(const Task& task) const;
  /// Sets room aside for a task whose prompt is being prefilled, until Add or Release; preempts those who
  /// give way to it. REQUIRES: HasRoomFor
  void Reserve(const Task& task);
  void Release(const Task& task);
  /// Carries task->decoding() on from now on. REQUIRES: Reserve
  void Add(std::shared_ptr<Task> task);

  /// A token for every sequence that has its turn, or more; then, for so long about, work on those that were
  /// preempted. Returns the tasks that have ended.
  std::vector<std::shared_ptr<Task>> Step(absl::Duration resuming);
  /// What the last step took in seconds, by the sequences' tasks: each has the part that its rows have, and
  /// what was done to get its KV back where its party had several answers when it was preempted. Once: the
  /// batch keeps no task alive that has ended.
  std::vector<std::pair<std::shared_ptr<Task>, double>> TakeSpent() { return std::exchange(spent_, {}); }
  /// What a step of a batch as it is now takes, about; 0: not known yet.
  double step_seconds() const { return step_cost_.Seconds(last_rows_); }

  /// Counts since the batch was made, which any thread may read.
  struct Counts {
    std::atomic<int32_t> sequences = 0;  // now
    std::atomic<int64_t> steps = 0;
    std::atomic<int64_t> tokens = 0;       // of those steps
    std::atomic<int64_t> drafted = 0;      // tokens that were guessed and run
    std::atomic<int64_t> accepted = 0;     // of these, those that were right
    std::atomic<int64_t> preemptions = 0;  // answers that gave their pages up for others
  };
  const Counts& counts() const { return counts_; }

 private:
  /// What the number of a sequence's pages, and its turn to have them, follow from.
  struct Claim {
    Party party;
    int64_t arrival = 0;        // the higher, the younger
    int32_t prompt_tokens = 0;  // at the beginning
    int32_t max_tokens = 0;     // prompt and answer, at the end

    bool IsBefore(const Claim& other) const {
      if (party.priority != other.party.priority) return party.priority < other.party.priority;
      return arrival < other.arrival;
    }
    /// Whether the other one gives its pages up so that this one gets its KV back.
    bool MayPause(const Claim& other) const {
      return IsBefore(other) && (party.priority != other.party.priority || party == other.party);
    }
  };
  struct Member {
    std::shared_ptr<Task> task;
    DecodingSequence* sequence;  // the task's
    Claim claim;
    bool resuming = false;           // of those that are paused: it has its pages, and its KV is on its way
    bool pays_for_resuming = false;  // of the same: that is charged to its party
    int64_t last_turn = 0;           // see StepTurns
    bool has_turn = false;           // it is in the next one
  };
  using Ended = std::vector<std::shared_ptr<Task>>;

  /// What to run in the next step: of each sequence that has its turn its token, and guesses where they are
  /// worth it.
  struct Rows {
    std::vector<Member*> members;
    std::vector<NextTokens> next;
    std::vector<int32_t> match;  // of each sequence's guess; see PromptLookup
  };
  Rows PlanRows();
  /// Delivers what came of a sequence's rows. Returns whether it goes on.
  /// `attended`: what each of the rows' tokens attends to.
  bool Deliver(DecodingSequence& sequence, const NextTokens& next, int32_t match,
               absl::Span<const kernels::SampledToken> sampled,
               absl::Span<std::vector<ChunkAttention>> attended);
  void Decode(Ended& ended);
  /// Notes a step in the traces of its sequences; `begins`: when it began, by the clock of each.
  void TraceStep(const Rows& rows, const std::vector<int64_t>& begins) const;
  /// Sets the members' has_turn.
  void TakeTurns();
  /// Ends those whose clients have gone.
  void DropCancelled(std::vector<Member>& from, Ended& ended);
  /// Pages for the next token of every member that has its turn; where there are too few, members are paused.
  void MakeRoom(Ended& ended);
  /// A member is paused, and its place is returned; or one that gets its KV back behind all members waits
  /// again.
  std::optional<size_t> PauseForGrowth();
  /// A member, by its index, gives its pages up and waits until it can have them again.
  void Pause(size_t member);
  /// The same of one that stands neither among the members nor among those that are paused.
  void GivePagesUp(Member member);
  /// Puts one that has given its pages up, or got none, in its place among those that are paused.
  void PutWithPaused(Member member);
  /// One of those that are paused begins to get its KV back, if there is room for it, or others give way to
  /// it. Returns whether.
  bool BeginResuming();
  /// Those that are paused get their KV back, one after the other, for so long about.
  void Resume(absl::Duration slice, Ended& ended);
  void Charge(const std::shared_ptr<Task>& task, double seconds);
  /// It has all of its tokens.
  void End(Member& member, Ended& ended);
  /// It ends with an error before.
  void Stop(Member& member, const absl::Status& status, Ended& ended);

  Claim ClaimOf(const Task& task) const;
  /// By members, by those that get their KV back, and by prompts; what several hold counts once. One that
  /// gets its KV back counts with all that it will have had then: the pages that it has no more than its
  /// prompt for yet would otherwise be taken by others in between.
  int64_t PagesHeld() const;
  /// How many tokens a sequence of so many is expected to become.
  int64_t TokensExpected(const Claim& claim, int32_t num_tokens) const;
  /// What a sequence takes at most until it has so many tokens: its prompt has all of its pages until it is
  /// done.
  int64_t PagesUntil(const Claim& claim, int64_t num_tokens) const;
  /// What a sequence of so many tokens now is let in, or back, for.
  int64_t PagesClaimed(const Claim& claim, int32_t num_tokens) const {
    return PagesUntil(claim, TokensExpected(claim, num_tokens));
  }
  int64_t PagesClaimed(const Member& member) const;
  /// How many fewer pages are claimed when it gives up its own: those that others hold too stay.
  int64_t PagesFreedBy(const Member& member) const;
  /// All of them together.
  int64_t PagesClaimed() const;
  /// Whether a task that has not begun is let in: pages that it will share with others are there already.
  bool HasPagesFor(const Task& task, const Claim& claim) const;
  /// How many pages are too few for one that claims so many; not above 0: none.
  int64_t PagesMissing(int64_t claimed) const { return PagesClaimed() + claimed - options_.max_pages; }
  /// Whether any of the party's is a member or is being prefilled.
  bool HasRunning(const Party& party) const;
  /// The members, in their order, each with the pages that `pages_of` tells of it.
  template <typename PagesOf>
  std::vector<PageHolder> Holders(PagesOf pages_of) const;
  /// The members that give way to the first one of a party; see page_turns.h.
  std::vector<size_t> GivingWayTo(const Party& party, int64_t claimed, int64_t missing) const;
  /// Those that give way to one that has not begun. REQUIRES: there is no room for it
  std::vector<size_t> GivingWayToNew(const Claim& claim) const;
  void CountSequences();

  PromptRunner& runner_;
  const kv::PagePool& pool_;
  const Options options_;
  std::vector<Member> members_;                       // in the order of IsBefore
  std::vector<Member> paused_;                        // the same, but one that is resuming is the first
  absl::flat_hash_map<const Task*, Claim> reserved_;  // whose prompts are being prefilled
  StepTurns turns_;
  int64_t num_turns_ = 0;
  int64_t next_arrival_ = 0;
  int32_t last_rows_ = 1;  // of the last step
  std::vector<std::pair<std::shared_ptr<Task>, double>> spent_;
  AnswerLengths lengths_;
  generate::StepCost step_cost_;
  generate::DraftLength draft_length_;
  Counts counts_;
};

}  // namespace kvblend
