// config.json of a Hugging Face folder, as the keys of a GGUF file. Internal to engine/model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/files/hf_architectures.h"
#include "engine/model/files/translated_model.h"

namespace kvblend::model {

/// A JSON object's fields, checked; null counts as absent. Errors name the file, the field, its value and
/// what is allowed. The object must stay.
class HfFields {
 public:
  HfFields(const nlohmann::json& object, std::string name) : object_(object), name_(std::move(name)) {}

  const nlohmann::json& object() const { return object_; }
  /// "FOLDER/config.json", for messages.
  const std::string& name() const { return name_; }

  /// nullptr when absent or null.
  const nlohmann::json* Find(std::string_view field) const;
  absl::StatusOr<std::optional<int64_t>> Integer(std::string_view field, int64_t min, int64_t max) const;
  /// A finite number.
  absl::StatusOr<std::optional<double>> Number(std::string_view field) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view field) const;
  absl::StatusOr<std::optional<std::string>> Text(std::string_view field) const;

  absl::Status Missing(std::string_view field) const;
  absl::Status Wrong(std::string_view field, std::string_view allowed) const;
  /// The same with kUnimplemented: a feature that is not there.
  absl::Status NotImplemented(std::string_view field, std::string_view allowed) const;

 private:
  const nlohmann::json& object_;
  const std::string name_;
};

/// What reading the tensors needs to know of the configuration.
struct HfModel {
  const HfArchitecture* architecture = nullptr;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t num_experts = 0;     // 0: none
  int64_t context_length = 0;  // tokens
  int64_t vocab_size = 0;      // rows of the embedding
  std::optional<bool> tied_output;
  /// Rows and columns that share a scale, of matrices in F8_E4M3 that have one for each block; none: no
  /// matrix has.
  std::optional<std::pair<int64_t, int64_t>> scale_block;
};

/// Writes the keys, and the divisors of RoPE's frequencies as tensors. kInvalidArgument for a field that is
/// missing or out of range, kUnimplemented for an architecture, a feature, or a field that may change results
/// and is unknown.
absl::StatusOr<HfModel> TranslateHfConfig(const HfFields& config, TranslatedModel& out);

/// The part of TranslateHfConfig about RoPE (hf_rope.cc). Sets model.context_length.
absl::Status TranslateHfRope(const HfFields& config, HfModel& model, TranslatedModel& out);

/// The part about weights in FP8 and MXFP4 (hf_quantization.cc). Sets model.scale_block.
absl::Status TranslateHfQuantization(const HfFields& config, HfModel& model);

}  // namespace kvblend::model
