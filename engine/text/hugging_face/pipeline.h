// What stands around the model of a tokenizer.json file: normalizer, pre-tokenizer, post-processor. Internal
// to engine/text/hugging_face.
#pragma once

#include "absl/status/status.h"
#include "engine/text/hugging_face/json.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// Sets the pre-tokenizer, the normalisation and the spaces of `spec`, and its model, unless that is kUnigram
/// already. kUnimplemented for combinations that it cannot say.
absl::Status ReadPipeline(const JsonValue& document, TokenizerSpec* spec);

/// Sets `bos` and `add_bos` where the post-processor puts a token in front.
absl::Status ReadPostProcessor(const JsonValue& document, TokenizerSpec* spec);

}  // namespace kvblend::text
