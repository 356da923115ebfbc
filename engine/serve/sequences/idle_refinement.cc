#include "engine/serve/sequences/idle_refinement.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend {

bool IdleRefinement::Step() {
  const absl::StatusOr<bool> more = Advance();
  if (more.ok()) return *more;
  spdlog::warn("a kept conversation of {} tokens or more could not be refined and is dropped: {}", end_,
               std::string(more.status().message()));
  run_.reset();
  kept_.Drop(id_);
  return true;
}

absl::StatusOr<bool> IdleRefinement::Advance() {
  KeptSequence* sequence = run_ == nullptr ? nullptr : kept_.Find(id_);
  if (sequence == nullptr) {
    // The last one worked on has gone on, or was dropped: others have its pages now.
    run_.reset();
    const std::optional<KeptSequences::Id> next = kept_.FirstInexact(kRows);
    if (!next.has_value()) {
      scratch_.reset();
      return false;
    }
    id_ = *next;
    KVBLEND_RETURN_IF_ERROR(Begin(*kept_.Find(id_)));
    return true;
  }
  KVBLEND_ASSIGN_OR_RETURN(const bool done, run_->Step());
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
  if (!done) return true;
  run_.reset();
  refined_tokens_.fetch_add(end_ - std::max(sequence->num_exact, sequence->num_whole),
                            std::memory_order_relaxed);
  sequence->num_whole = end_;
  std::erase_if(sequence->loaded, [&](const TokenRange& range) { return range.begin >= begin_; });
  sequence->num_exact = std::max(sequence->num_exact, end_);
  return true;
}

absl::Status IdleRefinement::Begin(const KeptSequence& sequence) {
  begin_ = sequence.num_whole;
  end_ = std::min(begin_ + kRows, sequence.num_tokens());
  // If the pool had to ask for pages, it might take them from this very sequence.
  KVBLEND_RETURN_IF_ERROR(sequence.pages->TakeBack());
  if (sequence.pages->PagesToCopy(begin_, end_) > runtime_.page_pool->num_free()) {
    return absl::ResourceExhaustedError("no pages are free for copies of those that it shares");
  }
  KVBLEND_RETURN_IF_ERROR(sequence.pages->MakeOwn(begin_, end_, *runtime_.stream));
  if (scratch_ == nullptr) scratch_ = scratch_pool_.Borrow();
  KVBLEND_ASSIGN_OR_RETURN(
      run_, blend::SequenceRefinement::Create(
                *runtime_.transformer, *runtime_.stream, *scratch_, sequence.token_ids, begin_, end_,
                blend::PagedSequence(*runtime_.backend, *runtime_.page_pool, *sequence.pages)));
  return absl::OkStatus();
}

}  // namespace kvblend
