#include "engine/model/files/hf_fused_experts.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/files/hf_rows.h"
#include "engine/model/files/hf_tensors.h"
#include "engine/model/gguf/dequantize.h"
#include "engine/model/gguf/gguf_text.h"
#include "kernels/host/float_convert.h"

namespace kvblend::model {
namespace {

constexpr int64_t kMxElements = 32;     // of a block
constexpr int64_t kMxNibbleBytes = 16;  // of a block in a folder

/// Which of a projection's outputs become a tensor: `first`, `first + step`, ...
struct OutputsTaken {
  std::string_view gguf_name;  // "ffn_up"
  int64_t first;
  int64_t step;
};

/// Where a row of the tensor is found: the first expert's rows come first.
struct FusedShape {
  int64_t outputs;  // of each expert
  int64_t inputs;
  OutputsTaken taken;

  int64_t rows() const { return outputs / taken.step; }
  int64_t ExpertOf(int64_t row) const { return row / rows(); }
  int64_t OutputOf(int64_t row) const { return taken.first + row % rows() * taken.step; }
};

float LoadPlainFloat(SafeDtype dtype, const std::byte* at) {
  if (dtype == SafeDtype::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == SafeDtype::kF16 ? kernels::F16ToF32(bits) : kernels::Bf16ToF32(bits);
}

/// Rows that are columns of [experts, inputs, outputs].
class FusedColumns final : public TensorRows {
 public:
  FusedColumns(const SafeTensor& tensor, const FusedShape& shape)
      : dtype_(tensor.dtype), data_(tensor.data), shape_(shape) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    const int64_t size = SizeOf(dtype_);
    const std::byte* at =
        data_.data() + (shape_.ExpertOf(row) * shape_.inputs * shape_.outputs + shape_.OutputOf(row)) * size;
    for (int64_t i = 0; i < shape_.inputs; ++i)
      out[i] = LoadPlainFloat(dtype_, at + i * shape_.outputs * size);
    return absl::OkStatus();
  }
  std::string_view type_name() const override { return Name(dtype_); }
  std::string recipe() const override {
    return Concat("Hugging Face ", type_name(), ", columns of experts, from ", shape_.taken.first, " every ",
                  shape_.taken.step);
  }

 private:
  const SafeDtype dtype_;
  const absl::Span<const std::byte> data_;
  const FusedShape shape_;
};

/// Rows of blocks and scales, as GGUF has MXFP4.
class FusedBlocks final : public TensorRows {
 public:
  FusedBlocks(const SafeTensor& blocks, const SafeTensor& scales, const FusedShape& shape)
      : blocks_(blocks.data), scales_(scales.data), shape_(shape) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    return DequantizeRow(TensorType::kMXFP4, RowOf(row), out);
  }
  std::optional<kernels::QuantizedFormat> format() const override {
    return QuantizedFormatOf(TensorType::kMXFP4);
  }
  absl::Status ReadCodes(int64_t row, const kernels::QuantizedRow& out) const override {
    return ReadQuantizedRow(TensorType::kMXFP4, RowOf(row), out);
  }
  std::string_view type_name() const override { return "MXFP4"; }
  std::string recipe() const override {
    return Concat("Hugging Face MXFP4, rows of experts, from ", shape_.taken.first, " every ",
                  shape_.taken.step);
  }
  std::vector<absl::Span<const std::byte>> more() const override {
    if (shape_.taken.first > 0) return {};  // the other tensor of these blocks counts them
    return {scales_};
  }

 private:
  // A block's exponent, then byte i of 16 with elements i (low nibble) and 16 + i.
  std::vector<std::byte> RowOf(int64_t row) const {
    const int64_t num_blocks = shape_.inputs / kMxElements,
                  stored = shape_.ExpertOf(row) * shape_.outputs + shape_.OutputOf(row);
    std::vector<std::byte> bytes;
    bytes.reserve(num_blocks * (1 + kMxNibbleBytes));
    for (int64_t block = stored * num_blocks; block < (stored + 1) * num_blocks; ++block) {
      const std::byte* in = blocks_.data() + block * kMxNibbleBytes;
      const auto nibble = [&](int64_t element) {
        return in[element / 2] >> (element % 2 * 4) & std::byte{15};
      };
      bytes.push_back(scales_[block]);
      for (int64_t i = 0; i < kMxElements / 2; ++i) {
        bytes.push_back(nibble(i) | nibble(i + kMxElements / 2) << 4);
      }
    }
    return bytes;
  }

  const absl::Span<const std::byte> blocks_, scales_;
  const FusedShape shape_;
};

/// The tensors of gate_up_proj or down_proj of a layer.
struct Projection {
  const SafeTensor *values = nullptr, *blocks = nullptr, *scales = nullptr, *bias = nullptr;
};

class FusedExpertsTranslator {
 public:
  FusedExpertsTranslator(const HfModel& model, std::string_view name, TranslatedModel& out)
      : model_(model), name_(name), out_(out) {}

  /// Whether the tensor belongs to fused experts; then it must stay where it is.
  bool Take(const SafeTensor& tensor);
  absl::Status AddAll();

 private:
  absl::Status Invalid(const SafeTensor& tensor, std::string_view what) const {
    return absl::InvalidArgumentError(Concat(name_, ": tensor ", Quote(tensor.name), " ", what));
  }
  absl::Status CheckShape(const SafeTensor& tensor, size_t dims, bool is_codes) const;
  absl::Status AddWeights(const std::string& prefix, const Projection& projection, const OutputsTaken& taken);
  absl::Status AddBias(const std::string& prefix, const SafeTensor& bias, const OutputsTaken& taken);

  const HfModel& model_;
  const std::string_view name_;
  TranslatedModel& out_;
  std::map<std::pair<int64_t, bool>, Projection> projections_;  // by layer, and whether it is gate_up_proj
};

bool FusedExpertsTranslator::Take(const SafeTensor& tensor) {
  constexpr std::string_view kLayers = "model.layers.", kExperts = "mlp.experts.";
  std::string_view name = tensor.name;
  if (!name.starts_with(kLayers)) return false;
  const auto layer = SplitNumber(name.substr(kLayers.size()));
  if (!layer.has_value() || layer->first >= model_.num_layers) return false;
  name = layer->second;
  if (!name.starts_with(kExperts)) return false;
  name.remove_prefix(kExperts.size());
  const bool is_gate_up = name.starts_with("gate_up_proj");
  if (!is_gate_up && !name.starts_with("down_proj")) return false;
  name.remove_prefix(std::string_view(is_gate_up ? "gate_up_proj" : "down_proj").size());
  const std::pair<std::string_view, const SafeTensor * Projection::*> kinds[] = {
      {"", &Projection::values},
      {"_blocks", &Projection::blocks},
      {"_scales", &Projection::scales},
      {"_bias", &Projection::bias}};
  for (const auto& [ending, member] : kinds) {
    if (name != ending) continue;
    projections_[{layer->first, is_gate_up}].*member = &tensor;
    return true;
  }
  return false;
}

absl::Status FusedExpertsTranslator::CheckShape(const SafeTensor& tensor, size_t dims, bool is_codes) const {
  if (is_codes ? tensor.dtype != SafeDtype::kU8 : !IsPlainFloat(tensor.dtype)) {
    return Invalid(tensor, Concat("is of dtype ", Name(tensor.dtype),
                                  "; allowed: ", is_codes ? "U8" : "F32, F16, BF16"));
  }
  if (tensor.shape.size() == dims && tensor.shape[0] == model_.num_experts) return absl::OkStatus();
  return Invalid(tensor, Concat("has shape ", tensor.ShapeString(), "; allowed: ", dims,
                                " dimensions, the first of the ", model_.num_experts, " experts"));
}

absl::Status FusedExpertsTranslator::AddWeights(const std::string& prefix, const Projection& projection,
                                                const OutputsTaken& taken) {
  const SafeTensor& tensor = projection.values != nullptr ? *projection.values : *projection.blocks;
  const bool has_blocks = projection.blocks != nullptr;
  FusedShape shape{.outputs = 0, .inputs = 0, .taken = taken};
  GgufTensor out;
  if (has_blocks) {
    shape.outputs = tensor.shape[1];
    shape.inputs = tensor.shape[2] * kMxElements;
    out.type = TensorType::kMXFP4;
    out.made = std::make_shared<FusedBlocks>(tensor, *projection.scales, shape);
  } else {
    shape.outputs = tensor.shape[2];
    shape.inputs = tensor.shape[1];
    out.type = GgufTypeOf(tensor.dtype);
    out.made = std::make_shared<FusedColumns>(tensor, shape);
  }
  if (shape.outputs % taken.step != 0) {
    return Invalid(tensor,
                   Concat("has ", shape.outputs, " outputs; allowed: as many for the gate as behind it"));
  }
  // Two tensors are made of the same bytes; the first one counts them.
  if (taken.first == 0) out.data = tensor.data;
  out.dims = {shape.inputs, shape.rows(), model_.num_experts};
  out_.AddTensor(Concat(prefix, taken.gguf_name, "_exps.weight"), std::move(out));
  return absl::OkStatus();
}

absl::Status FusedExpertsTranslator::AddBias(const std::string& prefix, const SafeTensor& bias,
                                             const OutputsTaken& taken) {
  const int64_t outputs = bias.shape[1], size = SizeOf(bias.dtype);
  if (outputs % taken.step != 0) {
    return Invalid(bias, Concat("has ", outputs, " outputs; allowed: as many for the gate as behind it"));
  }
  std::vector<float> values;
  values.reserve(bias.elements() / taken.step);
  for (int64_t i = taken.first; i < bias.elements(); i += taken.step) {
    values.push_back(LoadPlainFloat(bias.dtype, bias.data.data() + i * size));
  }
  out_.AddValues(Concat(prefix, taken.gguf_name, "_exps.bias"), std::move(values),
                 {outputs / taken.step, model_.num_experts});
  return absl::OkStatus();
}

absl::Status FusedExpertsTranslator::AddAll() {
  for (const auto& [place, projection] : projections_) {
    const auto& [values, blocks, scales, bias] = projection;
    if (values != nullptr) KVBLEND_RETURN_IF_ERROR(CheckShape(*values, 3, /*is_codes=*/false));
    if (blocks != nullptr) KVBLEND_RETURN_IF_ERROR(CheckShape(*blocks, 4, /*is_codes=*/true));
    if (scales != nullptr) KVBLEND_RETURN_IF_ERROR(CheckShape(*scales, 3, /*is_codes=*/true));
    if (bias != nullptr) KVBLEND_RETURN_IF_ERROR(CheckShape(*bias, 2, /*is_codes=*/false));
    if ((blocks == nullptr) != (scales == nullptr)) {
      return Invalid(blocks != nullptr ? *blocks : *scales, "is there, and its scales or blocks are not");
    }
    if (blocks != nullptr && values != nullptr) return Invalid(*values, "is there in blocks as well");
    if (blocks != nullptr &&
        (blocks->shape[3] != kMxNibbleBytes ||
         !std::equal(scales->shape.begin(), scales->shape.end(), blocks->shape.begin()))) {
      return Invalid(*blocks,
                     Concat("has shape ", blocks->ShapeString(), " with scales of shape ",
                            scales->ShapeString(), "; allowed: that of the scales and ", kMxNibbleBytes));
    }
    const auto& [layer, is_gate_up] = place;
    const std::string prefix = Concat("blk.", layer, ".");
    std::vector<OutputsTaken> all = {{"ffn_down", 0, 1}};
    if (is_gate_up) all = {{"ffn_gate", 0, 2}, {"ffn_up", 1, 2}};
    for (const OutputsTaken& taken : all) {
      if (values != nullptr || blocks != nullptr) {
        KVBLEND_RETURN_IF_ERROR(AddWeights(prefix, projection, taken));
      }
      if (bias != nullptr) KVBLEND_RETURN_IF_ERROR(AddBias(prefix, *bias, taken));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TranslateFusedExperts(std::vector<SafeTensor>& tensors, const HfModel& model,
                                   std::string_view name, TranslatedModel& out) {
  FusedExpertsTranslator translator(model, name, out);
  std::vector<SafeTensor> taken, others;
  taken.reserve(tensors.size());  // so that Take's pointers stay valid
  for (SafeTensor& tensor : tensors) {
    taken.push_back(std::move(tensor));
    if (translator.Take(taken.back())) continue;
    others.push_back(std::move(taken.back()));
    taken.pop_back();
  }
  tensors = std::move(others);
  return translator.AddAll();
}

}  // namespace kvblend::model
