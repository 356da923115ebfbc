// Which metadata keys a model file may hold. Internal to engine/model.
#pragma once

#include "absl/status/status.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

/// OK when every key is read by ReadModelConfig or ReadTokenizerSpec, is known not to change results, or
/// carries the value that switches its feature off. kUnimplemented naming the first other key.
absl::Status CheckMetadataKeys(const GgufFile& file, const Architecture& architecture);

}  // namespace kvblend::model
