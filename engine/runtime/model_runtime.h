// A loaded model with everything that running it needs: backend, weights, tokenizer, chat template, KV pages.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/engine.h"
#include "engine/blend/reuse_plan.h"
#include "engine/kv/correction_file.h"
#include "engine/kv/correction_slot.h"
#include "engine/kv/page_pool.h"
#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "engine/model/transformer.h"
#include "engine/store/format/host_memory.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "kernels/backend.h"

namespace kvblend {

/// The path of the learned correction of a model's stored KV, if it has one.
std::string CorrectionPath(const std::string& model_path);

/// kInvalidArgument, naming the path and the difference, unless it is a correction of this model's stored KV.
absl::Status CheckCorrectionFits(const std::string& path, const kv::LearnedCorrection& correction,
                                 const blend::KeySpace& key_space);

/// What `setting`, EngineOptions::correction, means for the model at `model_path`; nothing where no
/// correction is wanted, or none is found. kInvalidArgument or kDataLoss, naming the file, where it can't be
/// used.
absl::StatusOr<std::optional<kv::CorrectionFile>> FindCorrection(const std::string& setting,
                                                                 const std::string& model_path,
                                                                 const blend::KeySpace& key_space);

/// The shortest context in which the server can check itself: a token for each part of its prompt.
inline constexpr int32_t kMinCheckedTokens = 5;
/// kInvalidArgument for a shorter one: a setting, or a model of no use.
absl::Status CheckIsLongEnough(int64_t context_tokens);

/// Immutable after Load except the page pool and the correction, which are thread-safe. Members are declared
/// in the order in which they depend on each other, so that destruction runs the other way.
struct ModelRuntime {
  /// kNotFound, kInvalidArgument, kUnimplemented or kResourceExhausted naming the file or option.
  /// REQUIRES: the options' numbers are as CheckEngineOptions wants them (engine/api/option_table.h).
  static absl::StatusOr<std::unique_ptr<ModelRuntime>> Load(const EngineOptions& options,
                                                            const Engine::LoadObserver& on_load = nullptr);
  /// The same on a given backend; options.device, num_threads and gemm are not used.
  static absl::StatusOr<std::unique_ptr<ModelRuntime>> LoadOn(std::unique_ptr<kernels::Backend> backend,
                                                              const EngineOptions& options,
                                                              const Engine::LoadObserver& on_load = nullptr);

  std::string device;         // "cpu", "cuda:0", ...
  std::string device_reason;  // why it was chosen
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<store::HostMemory> host_memory;  // for stored KV: the backend's
  std::unique_ptr<kernels::Stream> stream;
  model::ModelConfig config;
  model::ModelWeights weights;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatTemplate> chat_template;
  std::string told_date;  // that prompts tell; empty: none
  std::unique_ptr<model::Transformer> transformer;
  blend::KeySpace key_space;
  kv::CorrectionSlot correction;                            // of stored KV; may be replaced while prompts run
  std::optional<kv::CorrectionFile> given_correction = {};  // what it was at the start
  int32_t max_context_tokens = 0;
  int64_t max_batch_tokens = 0;  // for which the pool has pages, besides one full context
  std::unique_ptr<kv::PagePool> page_pool;
};

}  // namespace kvblend
