// The tensors of a Hugging Face folder, as those of a GGUF file. Internal to engine/model.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/files/translated_model.h"

namespace kvblend::model {

/// Splits "12.rest" into the number that `text` begins with and the text after the dot. nullopt if there is
/// no such number; it has no sign and no leading 0.
std::optional<std::pair<int64_t, std::string_view>> SplitNumber(std::string_view text);

/// `name` is the folder's name in messages. What the tensors' data points to must live as long as `out`.
/// kUnimplemented naming a tensor that the architecture does not have; kInvalidArgument for one whose shape
/// is not what the configuration tells, or whose scales are missing or left over.
absl::Status TranslateHfTensors(std::vector<SafeTensor> tensors, const HfModel& model, std::string_view name,
                                TranslatedModel& out);

}  // namespace kvblend::model
