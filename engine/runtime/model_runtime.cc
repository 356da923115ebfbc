#include "engine/runtime/model_runtime.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_file.h"
#include "engine/model/model_file.h"
#include "engine/runtime/batch_tokens.h"
#include "engine/runtime/compute_names.h"
#include "engine/runtime/model_text.h"
#include "engine/store/format/backend_memory.h"
#include "kernels/device_choice.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

absl::StatusOr<kernels::DataType> KvDataType(const std::string& name, const kernels::Backend& backend) {
  KVBLEND_ASSIGN_OR_RETURN(const std::optional<kernels::DataType> type,
                           ParseTypeName(kKvDtypes, "kv-dtype", name));
  if (type == kernels::DataType::kInt8 && !backend.has_int8_pages()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv-dtype is '", name, "'; allowed: auto, bf16, f16, f32 on this backend"));
  }
  return type.value_or(backend.best_page_dtype());
}

absl::StatusOr<kernels::KvEncoding> ChunkEncoding(const EngineOptions& options, kernels::DataType kv_dtype) {
  KVBLEND_ASSIGN_OR_RETURN(const std::optional<kernels::KvEncoding> encoding,
                           ParseTypeName(kChunkFormats, "chunk-format", options.chunk_format));
  // A type of KV that was asked for is that of stored chunks as well.
  const bool int8 = options.kv_dtype == "auto" || kv_dtype == kernels::DataType::kInt8;
  return encoding.value_or(int8 ? kernels::KvEncoding::kInt8 : kernels::DenseEncoding(kv_dtype));
}

}  // namespace

std::string CorrectionPath(const std::string& model_path) {
  return absl::StrCat(model_path, ".kvcorrection");
}

absl::Status CheckCorrectionFits(const std::string& path, const kv::LearnedCorrection& correction,
                                 const blend::KeySpace& key_space) {
  if (correction.model_fingerprint != key_space.model_fingerprint) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " was fitted on the model ", ToHex(correction.model_fingerprint), ", this one is ",
                     ToHex(key_space.model_fingerprint), "; fit it anew with `kvblend calibrate`"));
  }
  const store::KvFormat& format = key_space.format;
  if (static_cast<int32_t>(correction.layers.size()) == format.num_layers &&
      correction.num_kv_heads == format.num_kv_heads && correction.head_dim == format.head_dim) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(path, " is for ", correction.layers.size(), " layers of ",
                                                 correction.num_kv_heads, " x ", correction.head_dim,
                                                 "; allowed: the model's ", format.num_layers, " of ",
                                                 format.num_kv_heads, " x ", format.head_dim));
}

absl::StatusOr<std::optional<kv::CorrectionFile>> FindCorrection(const std::string& setting,
                                                                 const std::string& model_path,
                                                                 const blend::KeySpace& key_space) {
  if (setting == "none") return std::nullopt;
  const bool automatic = setting == "auto";
  const std::string path = automatic ? CorrectionPath(model_path) : setting;
  absl::StatusOr<kv::CorrectionFile> file = kv::ReadCorrectionFile(path);
  if (automatic && absl::IsNotFound(file.status())) return std::nullopt;
  if (!file.ok()) return file.status();
  KVBLEND_RETURN_IF_ERROR(CheckCorrectionFits(path, file->correction, key_space));
  return *std::move(file);
}

absl::Status CheckIsLongEnough(int64_t context_tokens) {
  if (context_tokens >= kMinCheckedTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("self-check: a context of ", context_tokens,
                                                 " tokens is too short; allowed: ", kMinCheckedTokens,
                                                 " or more"));
}

absl::StatusOr<std::unique_ptr<ModelRuntime>> ModelRuntime::Load(const EngineOptions& options,
                                                                 const Engine::LoadObserver& on_load) {
  kernels::CpuBackendOptions cpu{.num_threads = options.num_threads, .weights_folder = options.map_weights};
  KVBLEND_ASSIGN_OR_RETURN(cpu.gemm, ParseTypeName(kGemms, "gemm", options.gemm));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::DeviceChoice choice,
                           kernels::ChooseDevice(options.device, kernels::ProbeCuda));
  if (!options.map_weights.empty() && choice.kind != kernels::DeviceChoice::Kind::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat("map-weights is '", options.map_weights, "' on device ",
                                                   choice.name(), "; allowed: cpu, or an empty map-weights"));
  }
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Backend> backend, kernels::CreateBackend(choice, cpu));
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime,
                           LoadOn(std::move(backend), options, on_load));
  runtime->device = choice.name();
  runtime->device_reason = choice.reason;
  return runtime;
}

absl::StatusOr<std::unique_ptr<ModelRuntime>> ModelRuntime::LoadOn(
    std::unique_ptr<kernels::Backend> given_backend, const EngineOptions& options,
    const Engine::LoadObserver& on_load) {
  auto runtime = std::make_unique<ModelRuntime>();
  runtime->backend = std::move(given_backend);
  runtime->device = runtime->backend->name();
  kernels::Backend& backend = *runtime->backend;
  runtime->host_memory = std::make_unique<store::BackendMemory>(backend);
  KVBLEND_ASSIGN_OR_RETURN(const kernels::DataType kv_dtype, KvDataType(options.kv_dtype, backend));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::KvEncoding chunk_encoding, ChunkEncoding(options, kv_dtype));
  KVBLEND_ASSIGN_OR_RETURN(runtime->stream, backend.CreateStream());

  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::OpenModel(options.model_path));
  KVBLEND_ASSIGN_OR_RETURN(runtime->config, model::ReadModelConfig(file));
  model::ModelConfig& config = runtime->config;
  if (options.max_context_tokens < 0 || options.max_context_tokens > config.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max-context-tokens is ", options.max_context_tokens,
                                                   "; allowed: 0 (the model's own) to ",
                                                   config.context_length));
  }
  const bool long_rope = config.UsesLongRope(config.context_length);
  if (options.max_context_tokens > 0) config.context_length = options.max_context_tokens;
  const bool short_rope = long_rope && !config.UsesLongRope(config.context_length);
  runtime->max_context_tokens = config.context_length;
  KVBLEND_ASSIGN_OR_RETURN(ModelText text,
                           LoadModelText(file, config, options.chat_format, options.chat_date));
  runtime->tokenizer = std::move(text.tokenizer);
  runtime->chat_template = std::move(text.chat_template);
  runtime->told_date = std::move(text.told_date);
  KVBLEND_ASSIGN_OR_RETURN(runtime->weights,
                           model::LoadModelWeights(file, config, backend, *runtime->stream, on_load));
  runtime->transformer = std::make_unique<model::Transformer>(config, runtime->weights, backend);
  KVBLEND_ASSIGN_OR_RETURN(runtime->key_space.model_fingerprint, model::Fingerprint(file, short_rope));
  runtime->key_space.format = {.encoding = chunk_encoding,
                               .num_layers = config.num_layers,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim};
  KVBLEND_ASSIGN_OR_RETURN(runtime->given_correction,
                           FindCorrection(options.correction, options.model_path, runtime->key_space));
  if (const auto& given = runtime->given_correction; given.has_value()) {
    const auto& learned = given->correction.learned;
    if (learned.has_value() && learned->encoding != static_cast<uint32_t>(chunk_encoding)) {
      spdlog::warn("the correction {} was learned from chunks of another chunk-format", given->version);
    }
    KVBLEND_ASSIGN_OR_RETURN(runtime->correction,
                             kv::LoadedCorrection::Load(given->correction, given->version, backend));
  }

  kv::PagePool::Options pool;
  pool.num_layers = config.num_layers;
  for (const model::LayerConfig& layer : config.layers) {
    const bool sees_all = layer.sliding_window == 0 || layer.sliding_window >= runtime->max_context_tokens;
    pool.windows.push_back(sees_all ? 0 : layer.sliding_window);
  }
  pool.num_kv_heads = config.num_kv_heads;
  pool.head_dim = config.head_dim;
  pool.page_size = options.page_size;
  pool.dtype = kv_dtype;
  const int64_t num_groups = kv::PagePool::GroupsOf(pool).num_groups();
  const int64_t token_bytes = num_groups * kv::PagePool::PageBytes(pool) / pool.page_size;
  runtime->max_batch_tokens =
      options.max_batch_tokens == 0
          ? DefaultBatchTokens(backend.device_memory(), token_bytes, runtime->max_context_tokens,
                               options.max_batch_size, kMaxBatchTokens)
          : options.max_batch_tokens;
  if (runtime->max_batch_tokens < runtime->max_context_tokens ||
      runtime->max_batch_tokens > kMaxBatchTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max-batch-tokens is ", options.max_batch_tokens, "; allowed: 0 (as many as fit), or ",
                     runtime->max_context_tokens, " (the context) to ", kMaxBatchTokens));
  }
  // One sequence runs beside those that are decoded, so that it never has to wait for their pages. A
  // sequence's last page may be used in part. On the CPU a page takes memory once it is used.
  const auto pages_for = [&](int64_t tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  const int64_t num_pages = num_groups * (pages_for(runtime->max_context_tokens) +
                                          pages_for(runtime->max_batch_tokens) + options.max_batch_size);
  if (num_pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max-batch-tokens is ", runtime->max_batch_tokens, ", which takes ", num_pages, " pages of ",
        options.page_size, " tokens; allowed: ", std::numeric_limits<int32_t>::max(), " pages"));
  }
  pool.num_pages = static_cast<int32_t>(num_pages);
  KVBLEND_ASSIGN_OR_RETURN(runtime->page_pool, kv::PagePool::Create(backend, pool));
  return runtime;
}

absl::StatusOr<std::vector<std::string>> ModelFingerprints(const std::string& model_path) {
  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::OpenModel(model_path));
  KVBLEND_ASSIGN_OR_RETURN(const Digest fingerprint, model::Fingerprint(file));
  std::vector<std::string> fingerprints = {ToHex(fingerprint)};
  const absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(file);
  if (config.ok() && config->UsesLongRope(config->context_length)) {
    KVBLEND_ASSIGN_OR_RETURN(const Digest limited, model::Fingerprint(file, /*short_rope=*/true));
    fingerprints.push_back(ToHex(limited));
  }
  return fingerprints;
}

}  // namespace kvblend
