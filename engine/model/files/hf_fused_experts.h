// Experts as folders of gpt-oss have them: those of a layer in a few tensors,
// "model.layers.<layer>.mlp.experts." and
//   gate_up_proj, down_proj                  F32, F16 or BF16 [experts, inputs, outputs]
//   gate_up_proj_blocks, down_proj_blocks    U8 [experts, outputs, inputs / 32, 16] in place of these: nibbles of MXFP4,
//                                            byte i of 16 with elements 2i (low) and 2i + 1
//   gate_up_proj_scales, down_proj_scales    U8 [experts, outputs, inputs / 32]: their exponents
//   gate_up_proj_bias, down_proj_bias        F32, F16 or BF16 [experts, outputs]
// where outputs 2i of gate_up_proj are the gate's and outputs 2i + 1 what it gates. Internal to engine/model.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/safetensors.h"
#include "engine/model/files/translated_model.h"

namespace kvblend::model {

/// Takes these tensors out of `tensors` and adds those that a GGUF file has in their place. MXFP4 stays
/// MXFP4. What their data points to must live as long as `out`. kInvalidArgument for a shape or dtype other
/// than these, for blocks without scales or the other way round, and for weights in both forms.
absl::Status TranslateFusedExperts(std::vector<SafeTensor>& tensors, const HfModel& model,
                                   std::string_view name, TranslatedModel& out);

}  // namespace kvblend::model
