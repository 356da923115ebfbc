#include "engine/serve/sequences/decode_batch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/steady_time.h"

namespace kvblend {

DecodeBatch::Claim DecodeBatch::ClaimOf(const Task& task) const {
  return {.party = {PriorityOf(task.caller()), task.caller().fairness_key},
          .arrival = next_arrival_,
          .prompt_tokens = task.max_working_tokens(),
          .max_tokens = task.max_decoding_tokens()};
}

int64_t DecodeBatch::TokensExpected(const Claim& claim, int32_t num_tokens) const {
  const int64_t expected = std::max<int64_t>(int64_t{claim.prompt_tokens} + lengths_.Expected(),
                                             int64_t{num_tokens} + pool_.page_size());
  return std::min<int64_t>(expected, claim.max_tokens);
}

int64_t DecodeBatch::PagesUntil(const Claim& claim, int64_t num_tokens) const {
  return std::max(pool_.PagesForTokens(std::min<int64_t>(claim.prompt_tokens, num_tokens)),
                  runner_.PagesBehindPrompt(num_tokens));
}

int64_t DecodeBatch::PagesClaimed(const Member& member) const {
  const int64_t tokens = TokensExpected(member.claim, member.sequence->num_tokens());
  // A sequence that has given back no pages yet holds more than it will.
  return std::max<int64_t>(runner_.PagesBehindPrompt(tokens), member.sequence->prompt().pages->num_held());
}

int64_t DecodeBatch::PagesFreedBy(const Member& member) const {
  return PagesClaimed(member) - member.sequence->prompt().pages->num_held_by_others();
}

int64_t DecodeBatch::PagesClaimed() const {
  int64_t pages = 0;
  for (const Member& member : members_) pages += PagesClaimed(member);
  for (const auto& [task, claim] : reserved_) pages += PagesClaimed(claim, claim.prompt_tokens);
  for (const Member& member : paused_) {
    if (member.resuming) pages += PagesClaimed(member.claim, member.sequence->num_tokens());
  }
  const kv::PagePool::Holdings held = pool_.HeldFor(kv::PageUse::kDecoding);
  return pages - (held.held - held.distinct);
}

bool DecodeBatch::HasRunning(const Party& party) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& member) { return member.claim.party == party; }) ||
         std::any_of(reserved_.begin(), reserved_.end(),
                     [&](const auto& reserved) { return reserved.second.party == party; });
}

bool DecodeBatch::HasPagesFor(const Task& task, const Claim& claim) const {
  const int64_t claimed = PagesClaimed(claim, claim.prompt_tokens);
  if (PagesMissing(claimed) <= 0) return true;
  // What it would share is dearer to find out.
  return PagesMissing(claimed - task.PagesToShare(runner_)) <= 0;
}

template <typename PagesOf>
std::vector<PageHolder> DecodeBatch::Holders(PagesOf pages_of) const {
  std::vector<PageHolder> holders;
  for (const Member& member : members_) holders.push_back({member.claim.party, pages_of(member)});
  return holders;
}

std::vector<size_t> DecodeBatch::GivingWayTo(const Party& party, int64_t claimed, int64_t missing) const {
  const auto freed_by = [this](const Member& member) { return PagesFreedBy(member); };
  std::vector<size_t> giving = GivingWay(Holders(freed_by), party, claimed, missing);
  std::sort(giving.begin(), giving.end(), std::greater<>());  // pausing one leaves the places of the next
  return giving;
}

std::vector<size_t> DecodeBatch::GivingWayToNew(const Claim& claim) const {
  // What it would share may be what is given up.
  const int64_t claimed = PagesClaimed(claim, claim.prompt_tokens);
  return GivingWayTo(claim.party, claimed, PagesMissing(claimed));
}

int64_t DecodeBatch::PagesHeld() const {
  // Prompts have all of their pages from their first unit of work on.
  int64_t pages = pool_.HeldFor(kv::PageUse::kDecoding).distinct;
  for (const Member& member : paused_) {
    if (!member.resuming) continue;
    const auto& own = member.sequence->prompt().pages;  // null: its prompt is not done
    const int32_t tokens = member.sequence->num_tokens();
    pages += own == nullptr
                 ? PagesUntil(member.claim, tokens) - pool_.PagesForTokens(member.claim.prompt_tokens)
                 : std::max<int64_t>(0, runner_.PagesBehindPrompt(tokens) - own->num_held());
  }
  return pages;
}

bool DecodeBatch::HasRoomFor(const Task& task) const {
  const size_t sequences = members_.size() + reserved_.size();
  if (sequences == 0) return paused_.empty();
  const Claim claim = ClaimOf(task);
  const bool is_first = !HasRunning(claim.party);
  const auto may_be_passed = [&](const Member& member) {
    return is_first && HasRunning(member.claim.party);  // so it is of another party
  };
  if (!std::all_of(paused_.begin(), paused_.end(), may_be_passed)) return false;
  if (sequences >= static_cast<size_t>(options_.max_sequences)) {
    std::vector<Party> present;
    for (const Member& member : members_) present.push_back(member.claim.party);
    for (const auto& [other, reserved] : reserved_) present.push_back(reserved.party);
    if (!turns_.MayJoin(std::move(present), claim.party)) return false;
  }
  if (HasPagesFor(task, claim)) return true;
  return is_first && task.SecondsSinceSubmission() >= absl::ToDoubleSeconds(kPatience) &&
         !GivingWayToNew(claim).empty();
}

void DecodeBatch::Reserve(const Task& task) {
  Claim claim = ClaimOf(task);
  if (!members_.empty() && !HasPagesFor(task, claim)) {
    for (const size_t member : GivingWayToNew(claim)) Pause(member);
  }
  reserved_.emplace(&task, std::move(claim));
  ++next_arrival_;
}

void DecodeBatch::Release(const Task& task) { reserved_.erase(&task); }

void DecodeBatch::Add(std::shared_ptr<Task> task) {
  DecodingSequence* sequence = task->decoding();
  const Claim claim = reserved_.extract(task.get()).mapped();
  const auto next = std::find_if(members_.begin(), members_.end(),
                                 [&](const Member& member) { return claim.IsBefore(member.claim); });
  members_.insert(next,
                  {.task = std::move(task), .sequence = sequence, .claim = claim, .last_turn = num_turns_});
  CountSequences();
}

void DecodeBatch::End(Member& member, Ended& ended) {
  lengths_.Add(member.sequence->num_tokens() - member.claim.prompt_tokens + 1);
  ended.push_back(std::move(member.task));
}

// How long an answer would have become is not known when it was stopped.
void DecodeBatch::Stop(Member& member, const absl::Status& status, Ended& ended) {
  member.sequence->Fail(status);
  ended.push_back(std::move(member.task));
}

void DecodeBatch::DropCancelled(std::vector<Member>& from, Ended& ended) {
  std::erase_if(from, [&](Member& member) {
    const absl::Status status = member.sequence->KeepGoing();
    if (status.ok()) return false;
    Stop(member, status, ended);
    return true;
  });
}

std::optional<size_t> DecodeBatch::PauseForGrowth() {
  if (!paused_.empty() && paused_.front().resuming &&
      (members_.empty() || members_.back().claim.IsBefore(paused_.front().claim))) {
    Member first = std::move(paused_.front());
    paused_.erase(paused_.begin());
    GivePagesUp(std::move(first));
    return std::nullopt;
  }
  const auto held_by = [](const Member& member) { return member.sequence->prompt().pages->num_held(); };
  const size_t member = NextToGivePagesUp(Holders(held_by));
  Pause(member);
  return member;
}

void DecodeBatch::Pause(size_t index) {
  Member member = std::move(members_[index]);
  members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(index));
  GivePagesUp(std::move(member));
}

void DecodeBatch::GivePagesUp(Member member) {
  counts_.preemptions.fetch_add(1, std::memory_order_relaxed);
  member.sequence->Pause();
  // Whoever has several answers had more than their share of the pages. A party's only answer is preempted
  // for the sake of others; it is not charged twice, so that the party's next prompt does not wait as well.
  const Party& party = member.claim.party;
  member.pays_for_resuming = member.pays_for_resuming || HasRunning(party) ||
                             std::any_of(paused_.begin(), paused_.end(),
                                         [&](const Member& other) { return other.claim.party == party; });
  PutWithPaused(std::move(member));
}

void DecodeBatch::PutWithPaused(Member member) {
  member.resuming = false;
  const auto next = std::find_if(paused_.begin(), paused_.end(), [&](const Member& other) {
    return !other.resuming && member.claim.IsBefore(other.claim);
  });
  paused_.insert(next, std::move(member));
}

bool DecodeBatch::BeginResuming() {
  // The first whose party has nothing running, or else the first.
  auto next = std::find_if(paused_.begin(), paused_.end(),
                           [&](const Member& member) { return !HasRunning(member.claim.party); });
  if (next == paused_.end()) next = paused_.begin();
  const Claim claim = next->claim;
  const DecodingSequence& sequence = *next->sequence;
  const bool alone = members_.empty() && reserved_.empty();
  const int64_t claimed = PagesClaimed(claim, sequence.num_tokens());
  int64_t missing = alone ? 0 : PagesMissing(claimed - sequence.pages_to_share());
  if (missing > 0) missing = PagesMissing(claimed);  // what it would share may be what is given up
  std::vector<size_t> giving;
  int64_t pages = 0;
  for (size_t i = members_.size(); i-- > 0 && pages < missing;) {
    if (!claim.MayPause(members_[i].claim)) continue;
    pages += PagesFreedBy(members_[i]);
    giving.push_back(i);
  }
  if (pages < missing) {
    if (HasRunning(claim.party)) return false;
    giving = GivingWayTo(claim.party, claimed, missing);
    if (giving.empty()) return false;
  }
  next->resuming = true;
  std::rotate(paused_.begin(), next, next + 1);
  for (const size_t member : giving) Pause(member);
  // What several hold is not free when one of them gives it up, so less may have become free than was counted
  // above. Then it waits again: those that were paused for it left room for the next try.
  if (alone || PagesMissing(-sequence.pages_to_share()) <= 0) return true;
  Member first = std::move(paused_.front());
  paused_.erase(paused_.begin());
  PutWithPaused(std::move(first));
  return false;
}

void DecodeBatch::TakeTurns() {
  std::vector<StepTurns::Answer> answers;
  for (Member& member : members_) {
    answers.push_back({member.claim.party, member.last_turn});
    member.has_turn = false;
  }
  for (const size_t next : turns_.Next(answers)) {
    members_[next].has_turn = true;
    members_[next].last_turn = ++num_turns_;
  }
}

void DecodeBatch::MakeRoom(Ended& ended) {
  for (size_t i = 0; i < members_.size();) {
    if (!members_[i].has_turn) {
      ++i;
      continue;
    }
    const int64_t tokens = int64_t{members_[i].sequence->num_tokens()} + 1;
    const int64_t missing = members_[i].sequence->prompt().pages->PagesToGrow(tokens);
    const auto fits = [&] { return missing == 0 || PagesHeld() + missing <= options_.max_pages; };
    bool is_member = true;
    while (is_member && !fits()) {
      const std::optional<size_t> paused = PauseForGrowth();
      is_member = paused != i;
      if (paused.has_value() && *paused < i) --i;
    }
    if (!is_member) continue;
    if (absl::Status status = members_[i].sequence->prompt().pages->Grow(tokens); !status.ok()) {
      Stop(members_[i], status, ended);
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    ++i;
  }
}

DecodeBatch::Rows DecodeBatch::PlanRows() {
  Rows rows;
  for (Member& member : members_) {
    if (member.has_turn) rows.members.push_back(&member);
  }
  auto num_rows = static_cast<int32_t>(rows.members.size());
  int64_t free_pages = options_.max_pages - PagesHeld();
  for (const Member* member : rows.members) {
    DecodingSequence& sequence = *member->sequence;
    NextTokens& next = rows.next.emplace_back(
        NextTokens{&sequence.prompt(), {sequence.next_token()}, {}, sequence.attributed_chunks()});
    // Nobody is paused for guesses.
    const kv::SequencePages& pages = *sequence.prompt().pages;
    const int64_t tokens = int64_t{sequence.num_tokens()} + 1;
    const int64_t places = pages.num_places() + free_pages / pool_.groups().num_groups();
    const int64_t room = places * pool_.page_size() - tokens;
    const auto most = static_cast<int32_t>(
        std::min<int64_t>({options_.max_draft_tokens, options_.max_draft_rows - num_rows, room}));
    const generate::PromptLookup::Guess guess =
        most > 0 ? sequence.Guess(most) : generate::PromptLookup::Guess();
    const int32_t length =
        draft_length_.Choose(guess.match, static_cast<int32_t>(guess.tokens.size()), num_rows, step_cost_);
    free_pages -= pages.PagesToGrow(tokens + length);
    next.token_ids.insert(next.token_ids.end(), guess.tokens.begin(), guess.tokens.begin() + length);
    for (int32_t i = 0; i <= length; ++i) next.sampling.push_back(sequence.Sampling(i));
    rows.match.push_back(guess.match);
    num_rows += length;
  }
  last_rows_ = num_rows;
  return rows;
}

bool DecodeBatch::Deliver(DecodingSequence& sequence, const NextTokens& next, int32_t match,
                          absl::Span<const kernels::SampledToken> sampled,
                          absl::Span<std::vector<ChunkAttention>> attended) {
  const auto drafted = static_cast<int32_t>(sampled.size()) - 1;
  int32_t right = 0;
  if (drafted > 0) counts_.drafted.fetch_add(drafted, std::memory_order_relaxed);
  bool goes_on = true;
  for (int32_t i = 0; i <= drafted; ++i) {
    ++sequence.prompt().num_tokens;
    counts_.tokens.fetch_add(1, std::memory_order_relaxed);
    // A guess behind the answer's last token was right, but spared no step.
    if (i > 0) counts_.accepted.fetch_add(1, std::memory_order_relaxed);
    if (!next.chunks.empty()) sequence.Attribute(std::move(attended[i]));
    goes_on = sequence.Continue(sampled[i]);
    if (i == drafted || sampled[i].token_id != next.token_ids[i + 1]) break;
    ++right;
    if (!goes_on) break;
  }
  if (drafted > 0) draft_length_.Observe(match, drafted, right);
  return goes_on;
}

void DecodeBatch::TraceStep(const Rows& rows, const std::vector<int64_t>& begins) const {
  for (size_t i = 0; i < rows.members.size(); ++i) {
    RequestTrace* trace = rows.members[i]->task->caller().trace.get();
    if (trace == nullptr) continue;
    const auto run = static_cast<int64_t>(rows.next[i].token_ids.size());
    trace->Add({.name = "decode step",
                .begin = begins[i],
                .end = trace->Now(),
                .arguments = {RequestTrace::Argument{"sequences", static_cast<int64_t>(rows.members.size())},
                              {"rows", last_rows_},
                              {"guesses", run - 1}}});
  }
}

void DecodeBatch::Decode(Ended& ended) {
  const Rows rows = PlanRows();
  if (rows.members.empty()) return;
  std::vector<int64_t> begins;
  for (const Member* member : rows.members) begins.push_back(TraceNow(member->task->caller().trace.get()));
  std::vector<std::vector<ChunkAttention>> attended;
  const absl::Time start = SteadyNow();
  const absl::StatusOr<std::vector<kernels::SampledToken>> sampled = runner_.ExtendAll(rows.next, &attended);
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  step_cost_.Add(last_rows_, seconds);
  for (size_t i = 0; i < rows.members.size(); ++i) {
    const auto share = static_cast<double>(rows.next[i].token_ids.size()) / last_rows_;
    Charge(rows.members[i]->task, share * seconds);
  }
  TraceStep(rows, begins);
  // Counted before the client sees the tokens.
  if (sampled.ok()) counts_.steps.fetch_add(1, std::memory_order_relaxed);
  std::vector<Member> going = std::exchange(members_, {});
  size_t i = 0, row = 0;  // of those that had their turn
  for (Member& member : going) {
    if (!member.has_turn) {
      members_.push_back(std::move(member));
      continue;
    }
    if (!sampled.ok()) {
      Stop(member, sampled.status(), ended);
      continue;
    }
    const size_t count = rows.next[i].token_ids.size();
    const bool goes_on = Deliver(*member.sequence, rows.next[i], rows.match[i],
                                 absl::MakeConstSpan(*sampled).subspan(row, count),
                                 absl::MakeSpan(attended).subspan(row, count));
    row += count;
    ++i;
    if (goes_on) {
      members_.push_back(std::move(member));
    } else {
      End(member, ended);
    }
  }
}

void DecodeBatch::Charge(const std::shared_ptr<Task>& task, double seconds) {
  if (spent_.empty() || spent_.back().first != task) spent_.emplace_back(task, 0);
  spent_.back().second += seconds;
}

void DecodeBatch::Resume(absl::Duration slice, Ended& ended) {
  const absl::Time start = SteadyNow();
  // For KV that is on its way: that is nobody's work, and others have their turn meanwhile.
  bool waits = false;
  do {
    if (paused_.empty()) return;
    if (!paused_.front().resuming && !BeginResuming()) return;
    Member& first = paused_.front();
    waits = std::isinf(first.task->predicted_seconds_left());
    const absl::Time begin = SteadyNow();
    const absl::StatusOr<bool> done = first.sequence->Resume();
    if (first.pays_for_resuming && !waits) {
      Charge(first.task, absl::ToDoubleSeconds(SteadyNow() - begin));
    }
    if (done.ok() && !*done) continue;
    Member member = std::move(first);
    paused_.erase(paused_.begin());
    if (!done.ok()) {
      Stop(member, done.status(), ended);
      continue;
    }
    member.resuming = member.pays_for_resuming = false;
    const auto next = std::find_if(members_.begin(), members_.end(),
                                   [&](const Member& other) { return member.claim.IsBefore(other.claim); });
    members_.insert(next, std::move(member));
  } while (!waits && SteadyNow() - start < slice);
}

std::vector<std::shared_ptr<Task>> DecodeBatch::Step(absl::Duration resuming) {
  Ended ended;
  spent_.clear();
  DropCancelled(members_, ended);
  DropCancelled(paused_, ended);
  TakeTurns();
  MakeRoom(ended);
  Decode(ended);
  Resume(resuming, ended);
  CountSequences();
  return ended;
}

void DecodeBatch::CountSequences() {
  counts_.sequences.store(static_cast<int32_t>(members_.size()), std::memory_order_relaxed);
}

}  // namespace kvblend
