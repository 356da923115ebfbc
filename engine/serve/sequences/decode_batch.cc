#include "engine/serve/sequences/decode_batch.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvblend {

bool DecodeBatch::HasRoomFor(int32_t num_tokens) const {
  const int64_t sequences = static_cast<int64_t>(members_.size()) + num_reserved_;
  if (sequences == 0) return true;
  return sequences < options_.max_sequences && num_tokens_ + num_tokens <= options_.max_tokens;
}

void DecodeBatch::Reserve(int32_t num_tokens) {
  ++num_reserved_;
  num_tokens_ += num_tokens;
}

void DecodeBatch::Release(int32_t num_tokens) {
  --num_reserved_;
  num_tokens_ -= num_tokens;
}

bool DecodeBatch::Add(std::shared_ptr<Task> task) {
  DecodingSequence* sequence = task->decoding();
  const int32_t num_tokens = task->max_decoding_tokens();
  --num_reserved_;
  if (absl::Status status = sequence->prompt().pages->Grow(num_tokens); !status.ok()) {
    num_tokens_ -= num_tokens;
    sequence->Fail(status);
    return false;
  }
  members_.push_back({std::move(task), sequence, num_tokens});
  CountSequences();
  return true;
}

DecodeBatch::Rows DecodeBatch::PlanRows(absl::Span<Member> going) {
  Rows rows;
  auto num_rows = static_cast<int32_t>(going.size());
  for (Member& member : going) {
    DecodingSequence& sequence = *member.sequence;
    NextTokens& next = rows.next.emplace_back(NextTokens{&sequence.prompt(), {sequence.next_token()}, {}});
    const int32_t most = std::min(options_.max_draft_tokens, options_.max_draft_rows - num_rows);
    const generate::PromptLookup::Guess guess =
        most > 0 ? sequence.Guess(most) : generate::PromptLookup::Guess();
    const int32_t length =
        draft_length_.Choose(guess.match, static_cast<int32_t>(guess.tokens.size()), num_rows, step_cost_);
    next.token_ids.insert(next.token_ids.end(), guess.tokens.begin(), guess.tokens.begin() + length);
    for (int32_t i = 0; i <= length; ++i) next.sampling.push_back(sequence.Sampling(i));
    rows.match.push_back(guess.match);
    num_rows += length;
  }
  last_rows_ = num_rows;
  return rows;
}

bool DecodeBatch::Deliver(DecodingSequence& sequence, const NextTokens& next, int32_t match,
                          absl::Span<const kernels::SampledToken> sampled) {
  const auto drafted = static_cast<int32_t>(sampled.size()) - 1;
  int32_t right = 0;
  bool goes_on = true;
  for (int32_t i = 0; i <= drafted; ++i) {
    ++sequence.prompt().num_tokens;
    counts_.tokens.fetch_add(1, std::memory_order_relaxed);
    goes_on = sequence.Continue(sampled[i]);
    if (i == drafted || sampled[i].token_id != next.token_ids[i + 1]) break;
    ++right;
    if (!goes_on) break;
  }
  if (drafted > 0) {
    draft_length_.Observe(match, drafted, right);
    counts_.drafted.fetch_add(drafted, std::memory_order_relaxed);
    counts_.accepted.fetch_add(right, std::memory_order_relaxed);
  }
  return goes_on;
}

std::vector<std::shared_ptr<Task>> DecodeBatch::Step() {
  std::vector<Member> going;
  std::vector<std::shared_ptr<Task>> ended;
  const auto end = [&](Member& member) {
    num_tokens_ -= member.num_tokens;
    ended.push_back(std::move(member.task));
  };
  for (Member& member : members_) {
    if (absl::Status status = member.sequence->KeepGoing(); !status.ok()) {
      member.sequence->Fail(status);
      end(member);
      continue;
    }
    going.push_back(std::move(member));
  }
  members_.clear();
  if (going.empty()) {
    CountSequences();
    return ended;
  }
  const Rows rows = PlanRows(absl::MakeSpan(going));
  const absl::Time start = absl::Now();
  const absl::StatusOr<std::vector<kernels::SampledToken>> sampled = runner_.ExtendAll(rows.next);
  step_cost_.Add(last_rows_, absl::ToDoubleSeconds(absl::Now() - start));
  size_t row = 0;
  for (size_t i = 0; i < going.size(); ++i) {
    const size_t count = rows.next[i].token_ids.size();
    bool goes_on = false;
    if (sampled.ok()) {
      goes_on = Deliver(*going[i].sequence, rows.next[i], rows.match[i],
                        absl::MakeConstSpan(*sampled).subspan(row, count));
    } else {
      going[i].sequence->Fail(sampled.status());
    }
    row += count;
    if (goes_on) {
      members_.push_back(std::move(going[i]));
    } else {
      end(going[i]);
    }
  }
  CountSequences();
  if (sampled.ok()) counts_.steps.fetch_add(1, std::memory_order_relaxed);
  return ended;
}

void DecodeBatch::CountSequences() {
  counts_.sequences.store(static_cast<int32_t>(members_.size()), std::memory_order_relaxed);
}

}  // namespace kvblend
