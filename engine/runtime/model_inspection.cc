// InspectModel: see engine/api/model_report.h.
#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/chunk_key.h"
#include "engine/api/model_report.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/model/model_file.h"
#include "engine/model/model_weights.h"
#include "engine/runtime/model_runtime.h"
#include "engine/runtime/model_text.h"
#include "engine/text/utf8.h"

namespace kvblend {
namespace {

constexpr int64_t kMaxReported = int64_t{1} << 40;
constexpr int64_t kBytesOf16Bits = 2;

// The number at "<architecture>.<key>"; 0 where none makes sense: files that cannot run are reported too.
int64_t NumberOf(const model::GgufFile& file, const std::string& architecture, std::string_view key) {
  return file.GetInteger(absl::StrCat(architecture, ".", std::string(key)), 0, kMaxReported).value_or(0);
}

std::string TextOf(const model::GgufFile& file, std::string_view key) {
  constexpr size_t kMaxBytes = 200;
  return text::ShownOnOneLine(file.GetString(key).value_or(std::string_view()), kMaxBytes);
}

// What the CPU backend keeps: codes with scales as they are in the file, or of 16 bits, other matrices in 16
// bits, vectors in 32.
int64_t PackedBytes(const model::GgufTensor& tensor, int64_t elements) {
  const std::optional<kernels::QuantizedFormat> format = tensor.quantized_format();
  if (format.has_value()) {
    const int64_t kinds = format->has_minimum ? 2 : 1, groups = elements / format->group,
                  supers = elements / kernels::kSuperGroup;
    return elements * format->bits / 8 +
           kinds * (format->nested ? groups + supers * kBytesOf16Bits : groups * kBytesOf16Bits);
  }
  return elements * (tensor.dims.size() == 1 ? int64_t{sizeof(float)} : kBytesOf16Bits);
}

void AddTensors(const model::GgufFile& file, ModelReport& report) {
  for (const model::GgufTensor& tensor : file.tensors()) {
    const int64_t elements = tensor.rows() * tensor.cols();
    const std::string_view name = tensor.type_name();
    auto type = std::find_if(report.types.begin(), report.types.end(),
                             [&](const TensorTypeReport& known) { return known.type == name; });
    if (type == report.types.end()) {
      type = report.types.insert(type, TensorTypeReport{.type = std::string(name)});
    }
    ++type->tensors;
    type->elements += elements;
    type->bytes += tensor.stored_bytes();
    if (!tensor.name.starts_with("rope_")) report.parameters += elements;  // those are tables, not parameters
    report.weight_bytes += PackedBytes(tensor, elements);
  }
  std::stable_sort(report.types.begin(), report.types.end(),
                   [](const TensorTypeReport& a, const TensorTypeReport& b) { return a.bytes > b.bytes; });
}

// Adds what is known only of a model that can run.
absl::Status AddRunning(const model::GgufFile& file, std::string_view chat_format, ModelReport& report) {
  KVBLEND_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ReadModelConfig(file));
  KVBLEND_ASSIGN_OR_RETURN(const ModelText text, LoadModelText(file, config, chat_format, "today"));
  report.chat_format = text.chat_template->format_name();
  if (report.kv_tokens > report.context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("context is ", report.kv_tokens, "; allowed: 0 to the ",
                                                   report.context_tokens, " tokens of ", report.path));
  }
  for (const model::LayerConfig& layer : config.layers) {
    const int64_t window = layer.sliding_window == 0 ? report.kv_tokens : layer.sliding_window;
    report.answer_kv_bytes +=
        std::min(window, report.kv_tokens) * (report.kv_bytes_per_token / config.num_layers);
  }
  for (const model::RopeConfig& rope : config.ropes) {
    if (!rope.long_inv_freq.empty()) report.short_context_tokens = rope.original_context_length;
  }
  // A limited context may make it another model, as for the server.
  const bool short_rope = config.UsesLongRope(config.context_length) &&
                          !config.UsesLongRope(static_cast<int32_t>(report.kv_tokens));
  blend::KeySpace key_space;
  KVBLEND_ASSIGN_OR_RETURN(key_space.model_fingerprint, model::Fingerprint(file, short_rope));
  report.fingerprint = ToHex(key_space.model_fingerprint);
  key_space.format.num_layers = config.num_layers;
  key_space.format.num_kv_heads = config.num_kv_heads;
  key_space.format.head_dim = config.head_dim;
  KVBLEND_RETURN_IF_ERROR(FindCorrection("auto", report.path, key_space).status());
  return CheckIsLongEnough(report.kv_tokens);
}

std::string TokenizerOf(const model::GgufFile& file) {
  const std::string kind = TextOf(file, "tokenizer.ggml.model"), pre = TextOf(file, "tokenizer.ggml.pre");
  if (kind.empty()) return file.HasKey("tokenizer.huggingface.json") ? "tokenizer.json" : "";
  return pre.empty() ? kind : absl::StrCat(kind, " (", pre, ")");
}

}  // namespace

absl::StatusOr<ModelReport> InspectModel(const std::string& path, int64_t context_tokens,
                                         const std::string& chat_format) {
  if (context_tokens < 0 || context_tokens > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("context is ", context_tokens,
                                                   "; allowed: 0 (the model's own) to ",
                                                   std::numeric_limits<int32_t>::max()));
  }
  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::OpenModel(path));
  ModelReport report;
  report.path = path;
  report.name = TextOf(file, "general.name");
  report.architecture = TextOf(file, "general.architecture");
  const std::string& architecture = report.architecture;
  if (const auto fingerprint = model::Fingerprint(file); fingerprint.ok()) {
    report.fingerprint = ToHex(*fingerprint);
  }
  report.layers = NumberOf(file, architecture, "block_count");
  report.width = NumberOf(file, architecture, "embedding_length");
  report.heads = NumberOf(file, architecture, "attention.head_count");
  report.kv_heads = NumberOf(file, architecture, "attention.head_count_kv");
  if (report.kv_heads == 0) report.kv_heads = report.heads;
  report.head_size = NumberOf(file, architecture, "attention.key_length");
  if (report.head_size == 0 && report.heads > 0) report.head_size = report.width / report.heads;
  report.context_tokens = NumberOf(file, architecture, "context_length");
  if (const model::GgufTensor* embedding = file.FindTensor("token_embd.weight"); embedding != nullptr) {
    report.vocabulary = embedding->rows();
  }
  report.tokenizer = TokenizerOf(file);
  report.has_chat_template = !TextOf(file, "tokenizer.chat_template").empty();
  AddTensors(file, report);

  report.kv_tokens = context_tokens > 0 ? context_tokens : report.context_tokens;
  // In floating point: a file that cannot run may hold numbers whose product overflows whole ones.
  const double per_token = 2.0 * static_cast<double>(report.layers) * static_cast<double>(report.kv_heads) *
                           static_cast<double>(report.head_size) * kBytesOf16Bits;
  const double whole = per_token * static_cast<double>(report.kv_tokens);
  if (whole < 0x1p62) {
    report.kv_bytes_per_token = static_cast<int64_t>(per_token);
    report.kv_bytes = static_cast<int64_t>(whole);
  }
  report.runs = AddRunning(file, chat_format, report);
  return report;
}

}  // namespace kvblend
