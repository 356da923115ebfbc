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

std::vector<std::shared_ptr<Task>> DecodeBatch::Step() {
  std::vector<Member> going;
  std::vector<std::shared_ptr<Task>> ended;
  const auto end = [&](Member& member) {
    num_tokens_ -= member.num_tokens;
    ended.push_back(std::move(member.task));
  };
  std::vector<NextToken> next;
  for (Member& member : members_) {
    if (absl::Status status = member.sequence->KeepGoing(); !status.ok()) {
      member.sequence->Fail(status);
      end(member);
      continue;
    }
    next.push_back(
        {&member.sequence->prompt(), member.sequence->next_token(), member.sequence->NextSampling()});
    going.push_back(std::move(member));
  }
  members_.clear();
  if (going.empty()) {
    CountSequences();
    return ended;
  }
  const absl::Time start = absl::Now();
  const absl::StatusOr<std::vector<kernels::SampledToken>> sampled = runner_.ExtendAll(next);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  // A few steps' mean: contexts grow slowly, and a single step may have been interrupted.
  step_seconds_ =
      step_seconds_ == 0 ? seconds : 0.75 * step_seconds_ + 0.25 * std::min(seconds, 2 * step_seconds_);
  for (size_t i = 0; i < going.size(); ++i) {
    bool goes_on = false;
    if (sampled.ok()) {
      goes_on = going[i].sequence->Continue((*sampled)[i]);
    } else {
      going[i].sequence->Fail(sampled.status());
    }
    if (goes_on) {
      members_.push_back(std::move(going[i]));
    } else {
      end(going[i]);
    }
  }
  CountSequences();
  if (sampled.ok()) {
    counts_.steps.fetch_add(1, std::memory_order_relaxed);
    counts_.tokens.fetch_add(static_cast<int64_t>(going.size()), std::memory_order_relaxed);
  }
  return ended;
}

void DecodeBatch::CountSequences() {
  counts_.sequences.store(static_cast<int32_t>(members_.size()), std::memory_order_relaxed);
}

}  // namespace kvblend
