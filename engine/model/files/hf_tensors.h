// The tensors of a Hugging Face folder, as those of a GGUF file. Internal to engine/model.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/files/translated_model.h"

namespace kvblend::model {

/// `name` stands for the folder in messages. What the tensors' data points to must live as long as `out`.
/// kUnimplemented naming a tensor that the architecture does not have; kInvalidArgument for one whose shape is not
/// what the configuration tells, or whose scales are missing or left over.
absl::Status TranslateHfTensors(std::vector<SafeTensor> tensors, const HfModel& model, std::string_view name,
                                TranslatedModel& out);

}  // namespace kvblend::model
