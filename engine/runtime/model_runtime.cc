#include "engine/runtime/model_runtime.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/model/gguf_file.h"
#include "engine/store/format/backend_memory.h"
#include "kernels/device_choice.h"

namespace kvblend {
namespace {

constexpr int64_t kMaxBatchTokens = int64_t{1} << 24;

absl::StatusOr<kernels::CpuBackendOptions> ToCpuOptions(const EngineOptions& options) {
  using Gemm = kernels::CpuBackendOptions::Gemm;
  if (options.num_threads < 0 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads, "; allowed: 0 (one per processor) to 1024"));
  }
  Gemm gemm;
  if (options.gemm == "auto") {
    gemm = Gemm::kAuto;
  } else if (options.gemm == "bf16") {
    gemm = Gemm::kBF16;
  } else if (options.gemm == "f32") {
    gemm = Gemm::kF32;
  } else if (options.gemm == "int8") {
    gemm = Gemm::kInt8;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("gemm is '", options.gemm, "'; allowed: auto, bf16, f32, int8"));
  }
  return kernels::CpuBackendOptions{.num_threads = options.num_threads, .gemm = gemm};
}

absl::StatusOr<kernels::DataType> KvDataType(const std::string& name, const kernels::Backend& backend) {
  if (name == "auto") return backend.compute_dtype();
  for (kernels::DataType type :
       {kernels::DataType::kBF16, kernels::DataType::kF16, kernels::DataType::kF32}) {
    if (name == kernels::Name(type)) return type;
  }
  const bool has_int8 = backend.has_int8_pages();
  if (name == kernels::Name(kernels::DataType::kInt8) && has_int8) return kernels::DataType::kInt8;
  return absl::InvalidArgumentError(absl::StrCat("kv_dtype is '", name, "'; allowed: auto, bf16, f16, f32",
                                                 has_int8 ? ", int8" : " on this backend"));
}

absl::StatusOr<kernels::KvEncoding> ChunkEncoding(const EngineOptions& options, kernels::DataType kv_dtype) {
  using enum kernels::KvEncoding;
  if (options.chunk_format == "auto") {
    // Whoever asks for a type of KV gets it throughout.
    const bool int8 = options.kv_dtype == "auto" || kv_dtype == kernels::DataType::kInt8;
    return int8 ? kInt8 : kernels::DenseEncoding(kv_dtype);
  }
  for (const kernels::KvEncoding encoding : {kInt8, kInt4, kFp8, kBF16, kF16, kF32}) {
    if (options.chunk_format == kernels::Name(encoding)) return encoding;
  }
  return absl::InvalidArgumentError(absl::StrCat("chunk_format is '", options.chunk_format,
                                                 "'; allowed: auto, int8, int4, fp8, bf16, f16, f32"));
}

text::TokenizerSpec ToTokenizerSpec(model::TokenizerData data) {
  text::TokenizerSpec spec;
  spec.pre_tokenizer = std::move(data.pre);
  spec.tokens = std::move(data.tokens);
  spec.token_types = std::move(data.token_types);
  spec.merges = std::move(data.merges);
  spec.bos = data.bos_id;
  spec.eos = data.eos_id;
  spec.add_bos = data.add_bos;
  if (data.eot_id) spec.end_of_generation.push_back(*data.eot_id);
  return spec;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRuntime>> ModelRuntime::Load(const EngineOptions& options) {
  KVBLEND_ASSIGN_OR_RETURN(const kernels::CpuBackendOptions cpu, ToCpuOptions(options));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::DeviceChoice choice,
                           kernels::ChooseDevice(options.device, kernels::ProbeCuda));
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Backend> backend, kernels::CreateBackend(choice, cpu));
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, LoadOn(std::move(backend), options));
  runtime->device = choice.name();
  runtime->device_reason = choice.reason;
  return runtime;
}

absl::StatusOr<std::unique_ptr<ModelRuntime>> ModelRuntime::LoadOn(
    std::unique_ptr<kernels::Backend> given_backend, const EngineOptions& options) {
  auto runtime = std::make_unique<ModelRuntime>();
  runtime->backend = std::move(given_backend);
  runtime->device = runtime->backend->name();
  kernels::Backend& backend = *runtime->backend;
  runtime->host_memory = std::make_unique<store::BackendMemory>(backend);
  KVBLEND_ASSIGN_OR_RETURN(const kernels::DataType kv_dtype, KvDataType(options.kv_dtype, backend));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::KvEncoding chunk_encoding, ChunkEncoding(options, kv_dtype));
  KVBLEND_ASSIGN_OR_RETURN(runtime->stream, backend.CreateStream());

  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::GgufFile::Open(options.model_path));
  KVBLEND_ASSIGN_OR_RETURN(runtime->config, model::ReadModelConfig(file));
  model::ModelConfig& config = runtime->config;
  if (options.max_context_tokens < 0 || options.max_context_tokens > config.context_length) {
    return absl::InvalidArgumentError(absl::StrCat("max_context_tokens is ", options.max_context_tokens,
                                                   "; allowed: 0 (the model's own) to ",
                                                   config.context_length));
  }
  if (options.max_context_tokens > 0) config.context_length = options.max_context_tokens;
  runtime->max_context_tokens = config.context_length;
  KVBLEND_ASSIGN_OR_RETURN(model::TokenizerData tokenizer_data, model::ReadTokenizerData(file));
  KVBLEND_ASSIGN_OR_RETURN(runtime->tokenizer,
                           text::Tokenizer::Create(ToTokenizerSpec(std::move(tokenizer_data))));
  if (runtime->tokenizer->vocab_size() != config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(options.model_path, ": the tokenizer has ",
                                                   runtime->tokenizer->vocab_size(), " tokens, the model ",
                                                   config.vocab_size));
  }
  KVBLEND_ASSIGN_OR_RETURN(runtime->chat_template,
                           text::ChatTemplate::Create(*runtime->tokenizer, config.chat_template));
  KVBLEND_ASSIGN_OR_RETURN(runtime->weights,
                           model::LoadModelWeights(file, config, backend, *runtime->stream));
  runtime->transformer = std::make_unique<model::Transformer>(config, runtime->weights, backend);
  KVBLEND_ASSIGN_OR_RETURN(runtime->key_space.model_fingerprint, model::Fingerprint(file));
  runtime->key_space.format = {.encoding = chunk_encoding,
                               .num_layers = config.num_layers,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim};

  if (options.page_size < 1 || options.page_size > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", options.page_size, "; allowed: 1 to 1024 tokens"));
  }
  if (options.max_batch_size < 1 || options.max_batch_size > kMaxBatchSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch_size is ", options.max_batch_size, "; allowed: 1 to ", kMaxBatchSize));
  }
  runtime->max_batch_tokens =
      options.max_batch_tokens == 0 ? int64_t{4} * runtime->max_context_tokens : options.max_batch_tokens;
  if (runtime->max_batch_tokens < runtime->max_context_tokens ||
      runtime->max_batch_tokens > kMaxBatchTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_batch_tokens is ", options.max_batch_tokens, "; allowed: 0 (four times the context), or ",
        runtime->max_context_tokens, " (the context) to ", kMaxBatchTokens));
  }
  // One sequence runs beside those that are decoded, so that it never has to wait for their pages. A
  // sequence's last page may be used in part. On the CPU a page takes memory once it is used.
  kv::PagePool::Options pool;
  pool.num_layers = config.num_layers;
  pool.num_kv_heads = config.num_kv_heads;
  pool.head_dim = config.head_dim;
  pool.page_size = options.page_size;
  const auto pages_for = [&](int64_t tokens) { return (tokens + options.page_size - 1) / options.page_size; };
  pool.num_pages = static_cast<int32_t>(pages_for(runtime->max_context_tokens) +
                                        pages_for(runtime->max_batch_tokens) + options.max_batch_size);
  pool.dtype = kv_dtype;
  KVBLEND_ASSIGN_OR_RETURN(runtime->page_pool, kv::PagePool::Create(backend, pool));
  return runtime;
}

absl::StatusOr<std::string> ModelFingerprint(const std::string& model_path) {
  KVBLEND_ASSIGN_OR_RETURN(const model::GgufFile file, model::GgufFile::Open(model_path));
  KVBLEND_ASSIGN_OR_RETURN(const Digest fingerprint, model::Fingerprint(file));
  return ToHex(fingerprint);
}

absl::Status CheckDeviceName(std::string_view device) { return kernels::CheckDeviceName(device); }

}  // namespace kvblend
