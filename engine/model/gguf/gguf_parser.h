// Reads the header of a GGUF file into its parts. Internal to engine/model: use gguf_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// `name` stands for the file in messages. The views in the result point into `bytes`.
absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes, std::string_view name);

}  // namespace kvblend::model
