#include "engine/serve/sequences/decode_batch.h"

#include <utility>

namespace kvblend {

bool DecodeBatch::HasRoomFor(int32_t num_tokens) const {
  if (members_.empty()) return true;
  return static_cast<int64_t>(members_.size()) < options_.max_sequences &&
         num_tokens_ + num_tokens <= options_.max_tokens;
}

bool DecodeBatch::Add(std::shared_ptr<Task> task) {
  DecodingSequence* sequence = task->decoding();
  const int32_t num_tokens = task->max_decoding_tokens();
  if (absl::Status status = sequence->prompt().pages->Grow(num_tokens); !status.ok()) {
    sequence->Fail(status);
    return false;
  }
  num_tokens_ += num_tokens;
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
  const absl::StatusOr<std::vector<kernels::SampledToken>> sampled = runner_.ExtendAll(next);
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
