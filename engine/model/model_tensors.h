// Which tensors a model consists of. Internal to engine/model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace kvblend::model {

/// "blk.<layer>.<part>", part being "attn_q.weight" for instance
std::string LayerTensorName(int32_t layer, std::string_view part);

/// The tensor of this name if it is there with `rows` rows of `cols` elements (a vector has one row):
/// kInvalidArgument naming file, tensor, shape found and shape expected otherwise. Where `experts` is not 0,
/// it has as many rows for each of so many experts.
absl::StatusOr<const GgufTensor*> RequireTensor(const GgufFile& file, std::string_view name, int64_t rows,
                                                int64_t cols, int64_t experts = 0);

/// The weights of a layer's experts, [rows, cols] each: one tensor of all ("blk.0.ffn_up_exps.weight"), or
/// one for each ("blk.0.ffn_up.3.weight"), as files of the first months of mixtures have them. `part` is
/// "ffn_up" there. Errors: those of RequireTensor.
absl::StatusOr<std::vector<const GgufTensor*>> RequireExperts(const GgufFile& file, int32_t layer,
                                                              std::string_view part, int64_t rows,
                                                              int64_t cols, int64_t experts);

/// Every tensor that the configuration calls for is there in its shape (kInvalidArgument), and no other is
/// (kUnimplemented: a bias, expert or adapter would change the results).
absl::Status CheckTensors(const GgufFile& file, const ModelConfig& config);

}  // namespace kvblend::model
