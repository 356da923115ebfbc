// What a DecodeBatch needs of a sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/generate/prompt_lookup.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "kernels/sampling.h"

namespace kvblend {

/// A sequence whose prompt has been prefilled and whose first token has been chosen.
class DecodingSequence {
 public:
  virtual ~DecodingSequence() = default;
  virtual PrefilledPrompt& prompt() = 0;
  /// How many pages that running answers hold already it would begin with, if it were resumed now.
  virtual int64_t pages_to_share() const = 0;
  /// How many tokens prompt and answer have without the last one: those whose KV decoding needs.
  virtual int32_t num_tokens() const = 0;
  /// Gives its pages up. What it has said stays, and Resume brings it back to where it was.
  virtual void Pause() = 0;
  /// Does a unit of work, a part of a layer, towards having its KV in pages again. Returns whether it has:
  /// then it can be decoded on, to the same tokens as if it had never been paused. Errors: those of prompts.
  virtual absl::StatusOr<bool> Resume() = 0;
  /// The last token that was chosen and delivered: its KV is not in the pages yet.
  virtual int32_t next_token() const = 0;
  /// OK unless it was cancelled or its deadline has passed.
  virtual absl::Status KeepGoing() = 0;
  /// What may come behind next_token(), at most so many tokens; nothing where there is nothing to guess from.
  virtual generate::PromptLookup::Guess Guess(int32_t max_tokens) = 0;
  /// How the token is to be chosen that stands so many places behind the one after next_token(). What it
  /// points to is valid until Continue. REQUIRES: index == 0, or Guess has given as many tokens
  virtual kernels::SamplingSpec Sampling(int32_t index) = 0;
  /// The chunks of the prompt that the answer's attention is measured to; none: nothing is measured.
  virtual absl::Span<const prompt::Span> attributed_chunks() const = 0;
  /// Takes what the last token that was delivered attends to. Called where there are attributed_chunks,
  /// before Continue.
  virtual void Attribute(std::vector<ChunkAttention> chunks) = 0;
  /// Delivers the token that was chosen by Sampling(0). Returns whether the sequence goes on; otherwise it
  /// has told its observer.
  virtual bool Continue(const kernels::SampledToken& sampled) = 0;
  /// Ends it with an error; tells its observer.
  virtual void Fail(const absl::Status& status) = 0;
};

}  // namespace kvblend
