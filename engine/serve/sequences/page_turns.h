// Whose answers give their pages up where there are too few. As with the rows of a step (step_turns.h),
// parties count, not answers: whoever has several long answers gives way to others before those who have one,
// however old these are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/serve/sequences/step_turns.h"

namespace kvblend {

/// An answer that is being written, and how many pages it claims.
struct PageHolder {
  Party party;
  int64_t pages = 0;
};

/// Which of these, by its index, gives its pages up where answers have become longer than expected. It is one
/// of the lowest priority: the last one of the party that has the most pages among those with several
/// answers, or the last one where nobody has several. So the first answer of each party keeps its pages as
/// long as others have several. REQUIRES: there are some; those of lower priority stand behind the others,
/// and in each the younger ones behind the older ones.
size_t NextToGivePagesUp(absl::Span<const PageHolder> holders);

/// Which of these give their pages up so that the first answer of another party, which claims `claimed` pages
/// and finds `missing` too few, can be written beside them; empty if those that would are not enough. Answers
/// of more urgent parties do not, nor the only answer of a party, and each party keeps as many pages as the
/// newcomer claims. REQUIRES: as above; missing > 0
std::vector<size_t> GivingWay(absl::Span<const PageHolder> holders, const Party& newcomer, int64_t claimed,
                              int64_t missing);

}  // namespace kvblend
