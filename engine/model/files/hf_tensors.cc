#include "engine/model/files/hf_tensors.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status_macros.h"
#include "engine/model/files/hf_fused_experts.h"
#include "engine/model/files/hf_rows.h"
#include "engine/model/gguf/dequantize.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

// The name depends on who wrote the folder; either scale multiplies what is stored.
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScaleEndings[] = {".weight_scale_inv", ".weight_scale"};
// Scales of activations and of KV, neither of which is rounded here.
constexpr std::string_view kUnusedScales[] = {".activation_scale",  ".input_scale",
                                              ".input_scale_ub",    ".output_scale",
                                              ".self_attn.k_scale", ".self_attn.v_scale"};

const HfTensorName* FindName(absl::Span<const HfTensorName> names, std::string_view name) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const HfTensorName& candidate) { return candidate.name == name; });
  return found == names.end() ? nullptr : &*found;
}

// Where a tensor goes.
struct HfPlace {
  std::string name;       // in GGUF files; empty: it is not needed
  int64_t expert = -1;    // which of the experts that one tensor holds
  bool is_query = false;  // queries and keys are rotated
  bool is_key = false;
};

class TensorTranslator {
 public:
  TensorTranslator(const HfModel& model, std::string_view name, TranslatedModel& out)
      : model_(model), name_(name), out_(out) {}

  absl::Status Translate(std::vector<SafeTensor> tensors);

 private:
  absl::Status Invalid(const SafeTensor& tensor, std::string_view what) const {
    return absl::InvalidArgumentError(Concat(name_, ": tensor ", Quote(tensor.name), " ", what));
  }
  absl::StatusOr<HfPlace> PlaceOf(const SafeTensor& tensor) const;
  std::optional<HfPlace> PlaceInLayer(std::string_view rest) const;
  absl::Status TakeScales(std::vector<SafeTensor>& tensors);
  absl::Status CheckEmbedding(const std::vector<SafeTensor>& tensors);
  absl::StatusOr<HfMatrix> MatrixOf(const SafeTensor& tensor);
  int64_t RotaryHead(const HfPlace& place) const;
  absl::Status AddMatrix(const SafeTensor& tensor, HfPlace place);
  absl::Status AddVector(const SafeTensor& tensor, HfPlace place);
  absl::Status AddExperts();

  struct Expert {
    const SafeTensor* tensor;
    HfMatrix matrix;
  };

  const HfModel& model_;
  const std::string_view name_;
  TranslatedModel& out_;
  bool is_tied_ = false;                                 // logits are products with the embedding
  absl::flat_hash_map<std::string, SafeTensor> scales_;  // by the name of what they scale
  std::map<std::string, std::map<int64_t, Expert>> experts_;
};

std::optional<HfPlace> TensorTranslator::PlaceInLayer(std::string_view rest) const {
  const auto layer = SplitNumber(rest);
  if (!layer.has_value() || layer->first >= model_.num_layers) return std::nullopt;
  const std::string prefix = Concat("blk.", layer->first, ".");
  std::string_view part = layer->second;
  if (part == "self_attn.rotary_emb.inv_freq") return HfPlace{};  // follows from rope_theta
  const HfArchitecture& architecture = *model_.architecture;
  if (const HfTensorName* found = FindName(architecture.tensors, part); found != nullptr) {
    return HfPlace{.name = Concat(prefix, found->gguf_name),
                   .is_query = part.starts_with("self_attn.q_proj."),
                   .is_key = part.starts_with("self_attn.k_proj.")};
  }
  if (architecture.experts.empty() || !part.starts_with(architecture.expert_prefix)) return std::nullopt;
  part.remove_prefix(architecture.expert_prefix.size());
  const auto expert = SplitNumber(part);
  if (!expert.has_value() || expert->first >= model_.num_experts) return std::nullopt;
  const HfTensorName* found = FindName(architecture.experts, expert->second);
  if (found == nullptr) return std::nullopt;
  return HfPlace{.name = Concat(prefix, found->gguf_name), .expert = expert->first};
}

absl::StatusOr<HfPlace> TensorTranslator::PlaceOf(const SafeTensor& tensor) const {
  constexpr std::string_view kLayers = "model.layers.";
  const std::string_view name = tensor.name;
  if (name == "model.embed_tokens.weight") return HfPlace{.name = "token_embd.weight"};
  if (name == "model.norm.weight") return HfPlace{.name = "output_norm.weight"};
  if (name == "lm_head.weight") return HfPlace{.name = is_tied_ ? "" : "output.weight"};
  if (name.starts_with(kLayers)) {
    if (auto place = PlaceInLayer(name.substr(kLayers.size())); place.has_value()) return *std::move(place);
  }
  return absl::UnimplementedError(Concat(name_, ": tensor ", Quote(name),
                                         " is not part of the architecture '",
                                         model_.architecture->model_type, "' that kvblend implements"));
}

// Some folders hold the tied matrix twice. Where the two differ, training has untied them, whatever
// config.json says; transformers (since 5) does not tie them either.
absl::Status TensorTranslator::CheckEmbedding(const std::vector<SafeTensor>& tensors) {
  const auto find = [&](std::string_view name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const SafeTensor& each) { return each.name == name; });
    return found == tensors.end() ? nullptr : &*found;
  };
  const SafeTensor* embedding = find("model.embed_tokens.weight");
  const SafeTensor* output = find("lm_head.weight");
  is_tied_ = model_.tied_output == true;
  if (embedding == nullptr || embedding->shape.size() != 2) return absl::OkStatus();  // refused later
  if (embedding->shape[0] != model_.vocab_size) {
    return Invalid(*embedding, Concat("has ", embedding->shape[0],
                                      " rows; allowed: config.json's 'vocab_size', ", model_.vocab_size));
  }
  if (output != nullptr && is_tied_) {
    is_tied_ =
        output->dtype == embedding->dtype && output->shape == embedding->shape &&
        std::equal(output->data.begin(), output->data.end(), embedding->data.begin(), embedding->data.end());
  }
  return absl::OkStatus();
}

// Sets the scales aside: they are part of what they scale.
absl::Status TensorTranslator::TakeScales(std::vector<SafeTensor>& tensors) {
  std::vector<SafeTensor> others;
  for (SafeTensor& tensor : tensors) {
    const std::string_view name = tensor.name;
    const auto is_ending = [&](std::string_view ending) { return name.ends_with(ending); };
    if (std::any_of(std::begin(kUnusedScales), std::end(kUnusedScales), is_ending)) continue;
    const auto ending = std::find_if(std::begin(kScaleEndings), std::end(kScaleEndings), is_ending);
    if (ending == std::end(kScaleEndings)) {
      others.push_back(std::move(tensor));
      continue;
    }
    const std::string scaled(name.substr(0, name.size() - ending->size() + kWeight.size()));
    const auto [first, is_new] = scales_.try_emplace(scaled, std::move(tensor));
    if (!is_new) return Invalid(tensor, Concat("and ", Quote(first->second.name), " scale the same tensor"));
  }
  tensors = std::move(others);
  return absl::OkStatus();
}

absl::StatusOr<HfMatrix> TensorTranslator::MatrixOf(const SafeTensor& tensor) {
  HfMatrix matrix{.dtype = tensor.dtype,
                  .rows = tensor.shape[0],
                  .cols = tensor.shape[1],
                  .data = tensor.data,
                  .scales = {}};
  if (tensor.dtype != SafeDtype::kF8E4M3) return matrix;
  const auto found = scales_.find(tensor.name);
  if (found == scales_.end()) {
    return Invalid(tensor, Concat("is of dtype F8_E4M3, and there is no tensor ",
                                  Quote(Concat(tensor.name, "_scale_inv")), " or ",
                                  Quote(Concat(tensor.name, "_scale"))));
  }
  const SafeTensor scales = std::move(found->second);
  scales_.erase(found);
  const bool by_row =
      !scales.shape.empty() && scales.shape[0] == matrix.rows && scales.elements() == matrix.rows;
  if (scales.elements() == 1) {
    std::tie(matrix.block_rows, matrix.block_cols) = std::pair{matrix.rows, matrix.cols};
  } else if (model_.scale_block.has_value()) {
    std::tie(matrix.block_rows, matrix.block_cols) = *model_.scale_block;
    const std::vector<int64_t> expected = {(matrix.rows + matrix.block_rows - 1) / matrix.block_rows,
                                           (matrix.cols + matrix.block_cols - 1) / matrix.block_cols};
    if (scales.shape != expected) {
      return Invalid(scales, Concat("has shape ", scales.ShapeString(), "; allowed: [", expected[0], ", ",
                                    expected[1], "]"));
    }
  } else if (by_row) {  // [rows] or [rows, 1]
    std::tie(matrix.block_rows, matrix.block_cols) = std::pair{int64_t{1}, matrix.cols};
  } else {
    return Invalid(scales,
                   Concat("has shape ", scales.ShapeString(), "; allowed: one number, or one for each of ",
                          matrix.rows, " rows, as config.json has no size of blocks"));
  }
  if (!IsPlainFloat(scales.dtype)) {
    return Invalid(scales, Concat("is of dtype ", Name(scales.dtype), "; allowed: F32, F16, BF16"));
  }
  matrix.scales = scales.data;
  matrix.scale_dtype = scales.dtype;
  return matrix;
}

int64_t TensorTranslator::RotaryHead(const HfPlace& place) const {
  return model_.architecture->permuted && (place.is_query || place.is_key) ? model_.head_dim : 0;
}

absl::Status TensorTranslator::AddMatrix(const SafeTensor& tensor, HfPlace place) {
  KVBLEND_ASSIGN_OR_RETURN(HfMatrix matrix, MatrixOf(tensor));
  if (place.expert >= 0) {
    experts_[std::move(place.name)].emplace(place.expert, Expert{&tensor, matrix});
    return absl::OkStatus();
  }
  if (place.is_query || place.is_key) {
    const int64_t expected = (place.is_query ? model_.num_heads : model_.num_kv_heads) * model_.head_dim;
    if (matrix.rows != expected) {
      return Invalid(
          tensor, Concat("has ", matrix.rows, " rows; allowed: ", expected, ", heads of ", model_.head_dim));
    }
  }
  GgufTensor out;
  out.type = GgufTypeOf(matrix.dtype);
  out.dims = {matrix.cols, matrix.rows};
  out.data = matrix.data;
  out.made = MakeHfRows({matrix}, RotaryHead(place));
  out_.AddTensor(std::move(place.name), std::move(out));
  return absl::OkStatus();
}

absl::Status TensorTranslator::AddVector(const SafeTensor& tensor, HfPlace place) {
  if (tensor.dtype == SafeDtype::kF8E4M3)
    return Invalid(tensor, "is a vector in F8_E4M3; allowed: F32, F16, BF16");
  const bool is_norm = place.name.ends_with("norm.weight");
  const int64_t head = RotaryHead(place), size = tensor.shape[0];
  if (head > 0 && size % head != 0) {
    return Invalid(tensor, Concat("has ", size, " elements; allowed: whole heads of ", head));
  }
  if (head == 0 && !(is_norm && model_.architecture->norms_add_one)) {
    GgufTensor out;
    out.type = GgufTypeOf(tensor.dtype);
    out.dims = {size};
    out.data = tensor.data;
    out_.AddTensor(std::move(place.name), std::move(out));
    return absl::OkStatus();
  }
  std::vector<float> values(size);
  KVBLEND_RETURN_IF_ERROR(DequantizeRow(GgufTypeOf(tensor.dtype), tensor.data, absl::MakeSpan(values)));
  if (head > 0) {  // a bias goes with its rows
    const std::vector<float> stored = values;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t in_head = i % head;
      values[i] = stored[i - in_head + in_head % 2 * (head / 2) + in_head / 2];
    }
  } else {
    for (float& value : values) value += 1;
  }
  out_.AddVector(std::move(place.name), std::move(values));
  return absl::OkStatus();
}

absl::Status TensorTranslator::AddExperts() {
  for (const auto& [name, experts] : experts_) {
    if (static_cast<int64_t>(experts.size()) != model_.num_experts) {
      return absl::InvalidArgumentError(Concat(name_, ": ", experts.size(), " tensors belong to '", name,
                                               "'; allowed: one for each of the ", model_.num_experts,
                                               " experts"));
    }
    const HfMatrix& first = experts.begin()->second.matrix;
    std::vector<HfMatrix> parts;
    for (const auto& [number, expert] : experts) {
      const HfMatrix& matrix = expert.matrix;
      if (matrix.rows != first.rows || matrix.cols != first.cols || matrix.dtype != first.dtype) {
        return Invalid(*expert.tensor, Concat("has shape ", expert.tensor->ShapeString(), " in ",
                                              Name(matrix.dtype), "; allowed: that of expert 0"));
      }
      parts.push_back(matrix);
    }
    GgufTensor out;
    out.type = GgufTypeOf(first.dtype);
    out.dims = {first.cols, first.rows, model_.num_experts};
    out.data = first.data;
    out.made = MakeHfRows(std::move(parts), 0);
    out_.AddTensor(name, std::move(out));
  }
  return absl::OkStatus();
}

absl::Status TensorTranslator::Translate(std::vector<SafeTensor> tensors) {
  KVBLEND_RETURN_IF_ERROR(TakeScales(tensors));
  KVBLEND_RETURN_IF_ERROR(CheckEmbedding(tensors));
  if (model_.architecture->fused_experts) {
    KVBLEND_RETURN_IF_ERROR(TranslateFusedExperts(tensors, model_, name_, out_));
  }
  bool has_output = false;
  for (const SafeTensor& tensor : tensors) {
    KVBLEND_ASSIGN_OR_RETURN(HfPlace place, PlaceOf(tensor));
    if (place.name.empty()) continue;
    has_output |= place.name == "output.weight";
    if (!IsPlainFloat(tensor.dtype) && tensor.dtype != SafeDtype::kF8E4M3)
      return Invalid(tensor,
                     Concat("is of dtype ", Name(tensor.dtype), "; allowed: F32, F16, BF16, F8_E4M3"));
    if (tensor.shape.size() == 2) {
      KVBLEND_RETURN_IF_ERROR(AddMatrix(tensor, std::move(place)));
    } else if (tensor.shape.size() == 1 && place.expert < 0) {
      KVBLEND_RETURN_IF_ERROR(AddVector(tensor, std::move(place)));
    } else {
      return Invalid(tensor, Concat("has shape ", tensor.ShapeString(), "; allowed: one or two dimensions"));
    }
  }
  KVBLEND_RETURN_IF_ERROR(AddExperts());
  if (model_.tied_output == false && !has_output) {
    return absl::InvalidArgumentError(Concat(
        name_, ": tensor 'lm_head.weight' is missing although config.json has tie_word_embeddings false"));
  }
  if (!scales_.empty()) {
    return absl::InvalidArgumentError(Concat(name_, ": tensor ", Quote(scales_.begin()->second.name),
                                             " scales no tensor of dtype F8_E4M3"));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<std::pair<int64_t, std::string_view>> SplitNumber(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const size_t digits = end - text.data();
  if (error != std::errc() || text[0] == '-' || (text[0] == '0' && digits > 1)) return std::nullopt;
  if (digits == text.size() || text[digits] != '.') return std::nullopt;
  return std::pair{number, text.substr(digits + 1)};
}

absl::Status TranslateHfTensors(std::vector<SafeTensor> tensors, const HfModel& model, std::string_view name,
                                TranslatedModel& out) {
  return TensorTranslator(model, name, out).Translate(std::move(tensors));
}

}  // namespace kvblend::model
