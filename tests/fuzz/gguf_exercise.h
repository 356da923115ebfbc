// Everything that kvblend does with the bytes of a model file, for the fuzzer and for the corruption test.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace kvblend::model {

/// Parses the bytes, reads configuration and tokenizer, dequantizes the outer rows of every tensor, takes the
/// fingerprint and loads the weights. Returns the first error, or OK when the file is a model that could be
/// run.
absl::Status ExerciseGguf(absl::Span<const std::byte> bytes);

}  // namespace kvblend::model
