// Prompts to calibrate on, made of plain documents.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/calibration.h"
#include "engine/text/tokenizer.h"

namespace kvblend::prompt {

/// Makes prompts of a few chunks each. The chunks are shuffled, so that neighbours come from different
/// documents, as after retrieval; chunks left over are not used. The same documents always give the same
/// prompts. kInvalidArgument: bad sizes, or fewer chunks than two prompts take.
absl::StatusOr<std::vector<Prompt>> PromptsOfCorpus(const CalibrationCorpus& corpus,
                                                    const text::Tokenizer& tokenizer);

}  // namespace kvblend::prompt
