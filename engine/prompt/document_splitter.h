// Cuts documents into chunks that are worth retrieving: at most so many tokens each, overlapping, ending
// where a paragraph, a sentence or a word ends.
//
//   document   |---------------------------------------|
//   chunks     |-----------|
//                       |------------|
//                                  |-------------------|
//
// A chunk is a substring of its document, and its tokens are those of its text on its own: what a prompt with
// that text as a chunk has. Cuts never lie inside a UTF-8 character. The same document, options and
// vocabulary always give the same chunks, also when the document comes in pieces. Pure functions; safe from
// any thread. Time is linear in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace kvblend::prompt {

inline constexpr int32_t kMinChunkTokens = 16;

struct SplitOptions {
  int32_t chunk_tokens = 512;   // kMinChunkTokens and up: no chunk has more
  int32_t overlap_tokens = 64;  // 0 to chunk_tokens / 2: see SplitDocument
};

/// kInvalidArgument naming field, value and what is allowed.
absl::Status ValidateSplitOptions(const SplitOptions& options);

/// The bytes [begin, end) of the text.
struct DocumentChunk {
  size_t begin = 0;
  size_t end = 0;
  std::vector<text::TokenId> token_ids;
};

/// Takes the next chunk; an error ends the splitting.
using OnChunk = std::function<absl::Status(const DocumentChunk& chunk)>;

/// Hands over the chunks one by one, since a long text may have a million of them, and returns where the next
/// one begins: the text's size when there is none.
///
/// Every byte of the text is in a chunk; chunks come in order, the first begins with the text, and only an
/// empty text has none. Each but the last has at least half of chunk_tokens, unless the text has few places
/// to cut. Each but the first begins inside the one before: the two share at most overlap_tokens tokens, and
/// at least half as many, so that the second can begin at a good place.
///
/// With `goes_on`, `text` is the front of a longer document, cut between two characters: chunks that could
/// depend on what follows are left out, and what is returned is where the next piece has to begin.
///
/// kInvalidArgument: bad options, ill-formed UTF-8 (with its byte offset), or a character that normalization
/// makes more of than fits a chunk. Otherwise the error of `on_chunk`.
absl::StatusOr<size_t> SplitDocument(std::string_view text, bool goes_on, const SplitOptions& options,
                                     const text::Tokenizer& tokenizer, const OnChunk& on_chunk);

}  // namespace kvblend::prompt
