// Folders of models that see images too: the part of them that reads and writes text. Internal to
// engine/model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/safetensors.h"

namespace kvblend::model {

/// The configuration of the text part, whole, as the architecture's own folders have it; nothing where
/// `config` is of a model for text alone. kUnimplemented naming a field that may change results and is not
/// known.
absl::StatusOr<std::optional<nlohmann::json>> TextPartOf(const HfFields& config);

/// The tensors of the text part, under the names that they have in folders of such models alone. kDataLoss
/// naming `name` and the tensor where two have one such name.
absl::StatusOr<std::vector<SafeTensor>> TextTensorsOf(std::vector<SafeTensor> tensors, std::string_view name);

}  // namespace kvblend::model
