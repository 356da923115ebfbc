// Prompts to calibrate on, made of plain documents.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/calibration.h"
#include "engine/text/tokenizer.h"

namespace kvblend::prompt {

/// The documents' chunks, shuffled so that strangers stand beside each other as they do after retrieval, a few in each
/// prompt; what is left over is not used. The same documents always give the same prompts. kInvalidArgument: bad sizes, or
/// fewer chunks than two prompts take.
absl::StatusOr<std::vector<Prompt>> PromptsOfCorpus(const CalibrationCorpus& corpus,
                                                    const text::Tokenizer& tokenizer);

}  // namespace kvblend::prompt
