// Models of about a hundred megabytes with random weights, in every form that models are read in.
#pragma once

#include <cstdint>
#include <string>

#include "engine/model/gguf/gguf_types.h"

namespace kvblend::test_support {

enum class ModelForm : uint8_t { kFile, kParts, kFolder };

struct LargeModel {
  const char* name;
  model::TensorType type;  // of the matrices: Q4_K, Q6_K, Q8_0 or BF16; a folder has BF16
  int32_t layers;
  ModelForm form = ModelForm::kFile;
  int32_t experts = 0;  // of every layer, two of which a token uses; 0: an MLP. Not in a folder
};

struct LargeModelFiles {
  std::string path;     // what --model takes
  int64_t bytes = 0;    // of the files with weights
  int64_t weights = 0;  // how many
};

/// A llama with a tied output, whose router prefers no expert.
LargeModelFiles WriteLargeModel(const std::string& folder, const LargeModel& model);

}  // namespace kvblend::test_support
