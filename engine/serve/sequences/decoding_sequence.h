// What a DecodeBatch needs of a sequence.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "kernels/sampling.h"

namespace kvblend {

/// A sequence whose prompt has been prefilled and whose first token has been chosen.
class DecodingSequence {
 public:
  virtual ~DecodingSequence() = default;
  virtual PrefilledPrompt& prompt() = 0;
  /// The last token that was chosen and delivered: its KV is not in the pages yet.
  virtual int32_t next_token() const = 0;
  /// OK unless it was cancelled or its deadline has passed.
  virtual absl::Status KeepGoing() = 0;
  /// How the token after next_token() is to be chosen; once per step. What it points to is valid until
  /// Continue.
  virtual kernels::SamplingSpec NextSampling() = 0;
  /// Delivers the token that was chosen. Returns whether the sequence goes on; otherwise it has told its
  /// observer.
  virtual bool Continue(const kernels::SampledToken& sampled) = 0;
  /// Ends it with an error; tells its observer.
  virtual void Fail(const absl::Status& status) = 0;
};

}  // namespace kvblend
