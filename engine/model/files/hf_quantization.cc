// TranslateHfQuantization: the field quantization_config, in the forms that several makers of FP8 folders
// write.
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

absl::Status ReadBlock(const HfFields& fields, std::string_view name, HfModel& model) {
  const nlohmann::json* block = fields.Find(name);
  if (block == nullptr) return absl::OkStatus();
  const auto is_side = [](const nlohmann::json& side) {
    return side.is_number_unsigned() && side.get<uint64_t>() >= 1 && side.get<uint64_t>() <= 65536;
  };
  if (!block->is_array() || block->size() != 2 || !is_side((*block)[0]) || !is_side((*block)[1])) {
    return fields.Wrong(name, "two numbers from 1 to 65536");
  }
  const std::pair sides((*block)[0].get<int64_t>(), (*block)[1].get<int64_t>());
  if (model.scale_block.has_value() && *model.scale_block != sides) {
    return fields.Wrong(
        name, Concat("[", model.scale_block->first, ",", model.scale_block->second, "], as before"));
  }
  model.scale_block = sides;
  return absl::OkStatus();
}

// The object "weights" of a group of compressed-tensors.
absl::Status ReadGroupWeights(const HfFields& weights, HfModel& model) {
  KVBLEND_ASSIGN_OR_RETURN(const auto type, weights.Text("type"));
  if (type != "float") return weights.NotImplemented("type", "\"float\"");
  KVBLEND_ASSIGN_OR_RETURN(const auto num_bits, weights.Integer("num_bits", 1, 64));
  if (num_bits != 8) return weights.NotImplemented("num_bits", "8");
  KVBLEND_ASSIGN_OR_RETURN(const auto strategy, weights.Text("strategy"));
  if (strategy != "tensor" && strategy != "channel" && strategy != "block")
    return weights.NotImplemented("strategy", "\"tensor\", \"channel\", \"block\"");
  KVBLEND_ASSIGN_OR_RETURN(const auto symmetric, weights.Bool("symmetric"));
  if (symmetric == false) return weights.NotImplemented("symmetric", "true");
  return strategy == "block" ? ReadBlock(weights, "block_structure", model) : absl::OkStatus();
}

absl::Status ReadCompressedTensors(const HfFields& fields, HfModel& model) {
  KVBLEND_ASSIGN_OR_RETURN(const auto format, fields.Text("format"));
  if (format != "float-quantized") return fields.NotImplemented("format", "\"float-quantized\"");
  // Says that weights are rotated as well.
  const nlohmann::json* transforms = fields.Find("transform_config");
  if (transforms != nullptr && !transforms->empty()) return fields.NotImplemented("transform_config", "{}");
  const nlohmann::json* groups = fields.Find("config_groups");
  if (groups == nullptr) return fields.Missing("config_groups");
  if (!groups->is_object()) return fields.Wrong("config_groups", "an object");
  for (const auto& [name, group] : groups->items()) {
    const std::string path = Concat(fields.name(), ": config_groups: ", Quote(name));
    if (!group.is_object()) return absl::InvalidArgumentError(Concat(path, " is no object"));
    const HfFields group_fields(group, path);
    const nlohmann::json* weights = group_fields.Find("weights");
    if (weights == nullptr) continue;  // the group is about activations alone
    if (!weights->is_object()) return group_fields.Wrong("weights", "an object");
    KVBLEND_RETURN_IF_ERROR(ReadGroupWeights(HfFields(*weights, Concat(path, ": weights")), model));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TranslateHfQuantization(const HfFields& config, HfModel& model) {
  const nlohmann::json* object = config.Find("quantization_config");
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return config.Wrong("quantization_config", "an object");
  const HfFields fields(*object, Concat(config.name(), ": quantization_config"));
  KVBLEND_ASSIGN_OR_RETURN(const auto method, fields.Text("quant_method"));
  const bool may_be_mxfp4 = model.architecture->fused_experts;
  // Which matrices are left as they are does not matter here, nor how activations would be rounded: each
  // tensor tells its type, and activations are not rounded.
  if (may_be_mxfp4 && method == "mxfp4") return absl::OkStatus();
  if (method == "compressed-tensors") return ReadCompressedTensors(fields, model);
  if (method == "fbgemm_fp8") return absl::OkStatus();
  if (method != "fp8") {
    return fields.NotImplemented("quant_method", Concat("\"fp8\", \"fbgemm_fp8\", \"compressed-tensors\"",
                                                        may_be_mxfp4 ? ", \"mxfp4\"" : ""));
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto format, fields.Text("fmt"));
  if (format.has_value() && *format != "e4m3") return fields.NotImplemented("fmt", "\"e4m3\"");
  return ReadBlock(fields, "weight_block_size", model);
}

}  // namespace kvblend::model
