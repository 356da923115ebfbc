// Tokenizers as Hugging Face publishes them: tokenizer.json.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// The tokenizer in the file `name` with these contents, for Tokenizer::Create, with the ids that the
/// `tokenizers` package gives for text. Read are models BPE, over bytes and over characters; the
/// pre-tokenizers and normalizers of the families that the engine knows (patterns are recognised, not run);
/// added tokens, special ones as control tokens; and of post-processors, whether BOS comes first. What to
/// encode with, truncation and padding are not its business; nor is `eos`, which stands in other files.
///
/// kInvalidArgument for what is malformed or too large, kUnimplemented for what the engine does not do,
/// naming file and path, as in "tokenizer.json: pre_tokenizer is of type BertPreTokenizer; ...".
absl::StatusOr<TokenizerSpec> ReadTokenizerJson(std::string_view bytes, std::string_view name);

}  // namespace kvblend::text
