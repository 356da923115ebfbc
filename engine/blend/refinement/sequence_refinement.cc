#include "engine/blend/refinement/sequence_refinement.h"

#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace kvblend::blend {

SequenceRefinement::SequenceRefinement(const model::Transformer& transformer, kernels::Stream& stream,
                                       PrefillScratch& scratch, absl::Span<const int32_t> token_ids,
                                       int32_t end, const PagedSequence& sequence)
    : context_{.transformer = transformer,
               .stream = stream,
               .scratch = scratch,
               .layout = layout_,
               .plan = plan_,
               .sequence = sequence,
               .whole_kv = true} {
  layout_.token_ids.assign(token_ids.begin(), token_ids.begin() + end);
  plan_.prompt_tokens = end;
}

absl::StatusOr<std::unique_ptr<SequenceRefinement>> SequenceRefinement::Create(
    const model::Transformer& transformer, kernels::Stream& stream, PrefillScratch& scratch,
    absl::Span<const int32_t> token_ids, int32_t begin, int32_t end, const PagedSequence& sequence) {
  std::unique_ptr<SequenceRefinement> refinement(
      new SequenceRefinement(transformer, stream, scratch, token_ids, end, sequence));
  KVBLEND_ASSIGN_OR_RETURN(KvLoader loader, KvLoader::Create(refinement->context_, /*accounts=*/{}));
  refinement->loader_ = std::make_unique<KvLoader>(std::move(loader));
  std::vector<int32_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), begin);
  KVBLEND_ASSIGN_OR_RETURN(refinement->pass_,
                           RowPass::Create(refinement->context_, *refinement->loader_, std::move(rows)));
  return refinement;
}

absl::StatusOr<bool> SequenceRefinement::Step() {
  return pass_->Step([] { return absl::OkStatus(); });
}

}  // namespace kvblend::blend
