// A tiny model with a chunk store, and prompts of plain tokens to blend.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/blend/reuse_plan.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/chunk_store.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend {

inline absl::Status KeepRunning() { return absl::OkStatus(); }

using Tokens = std::vector<int32_t>;

/// A prompt [anchor | chunks | question] of the given tokens.
inline prompt::PromptLayout MakeLayout(const Tokens& anchor, const std::vector<Tokens>& chunks,
                                       const Tokens& question) {
  prompt::PromptLayout layout;
  const auto add = [&](prompt::SpanKind kind, int32_t chunk_index, const Tokens& tokens) {
    const int32_t begin = static_cast<int32_t>(layout.token_ids.size());
    layout.token_ids.insert(layout.token_ids.end(), tokens.begin(), tokens.end());
    layout.spans.push_back({kind, chunk_index, begin, static_cast<int32_t>(layout.token_ids.size())});
  };
  add(prompt::SpanKind::kSystem, -1, anchor);
  for (size_t i = 0; i < chunks.size(); ++i)
    add(prompt::SpanKind::kChunk, static_cast<int32_t>(i), chunks[i]);
  add(prompt::SpanKind::kQuestion, -1, question);
  layout.anchor_ids = anchor;
  layout.anchor_is_prefix = true;
  return layout;
}

/// sqrt(sum (a - b)^2 / sum b^2)
inline double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// Parameter: the backend's name. fp32 throughout, so that "equal to rounding" can be told from "nearly
/// right".
class BlendFixture : public testing::TestWithParam<std::string> {
 protected:
  // fp32 sums of a few hundred terms in another order: 2^-24 times a small factor, grown through the layers.
  static constexpr double kRounding = 2e-5;

  /// Instead of the parameter's.
  virtual std::unique_ptr<kernels::Backend> MakeBackend() { return nullptr; }

  void SetUp() override {
    const std::string path = test_support::TemporaryPath("blend_test.gguf");
    ASSERT_TRUE(test_support::WriteTinyModel(path, {.num_layers = 4, .context_length = 2048}).ok());
    EngineOptions options;
    options.model_path = path;
    options.device = GetParam();
    options.num_threads = 2;
    options.gemm = "f32";
    options.kv_dtype = "f32";
    options.page_size = 16;
    std::unique_ptr<kernels::Backend> backend = MakeBackend();
    absl::StatusOr<std::unique_ptr<ModelRuntime>> runtime =
        backend == nullptr ? ModelRuntime::Load(options) : ModelRuntime::LoadOn(std::move(backend), options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = std::move(*runtime);
    chunk_store_ = *store::ChunkStore::Create({.byte_budget = int64_t{256} << 20});
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
  }

  Tokens RandomTokens(int32_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) {
      token = test_support::kTinyFirstByte + static_cast<int32_t>(random_() % 256);
    }
    return tokens;
  }

  void Store(const Tokens& anchor, const Tokens& chunk) {
    const absl::StatusOr<StoredChunk> stored = runner_->EnsureStored("", anchor, chunk, {}, KeepRunning);
    ASSERT_TRUE(stored.ok()) << stored.status();
  }

  PrefilledPrompt Prefill(const prompt::PromptLayout& layout, const BlendOptions& options) {
    absl::StatusOr<PrefilledPrompt> prompt = runner_->Prefill(layout, options, "", KeepRunning);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    if (!prompt.ok()) return {};
    const PromptReport& report = prompt->report;
    EXPECT_EQ(report.exact_tokens + report.reused_tokens + report.recomputed_tokens + report.computed_tokens,
              report.prompt_tokens);
    return *std::move(prompt);
  }

  PrefilledPrompt FullPrefill(const prompt::PromptLayout& layout) {
    return Prefill(layout, {.reuse = Reuse::kNothing});
  }

  blend::ReusePlan Plan(const prompt::PromptLayout& layout, const BlendOptions& options,
                        std::string_view tenant = "") {
    return blend::PlanReuse(layout, options, runtime_->key_space, tenant, *chunk_store_);
  }

  store::ChunkAddress AddressOf(const Tokens& anchor, const Tokens& tokens) const {
    return store::AddressOf({.model_fingerprint = runtime_->key_space.model_fingerprint,
                             .format = runtime_->key_space.format,
                             .tenant_namespace = "",
                             .anchor_hash = store::HashTokens(anchor),
                             .token_ids = tokens});
  }

  /// With nothing of the prompts that the test still holds.
  static BlendOptions With(Policy policy, double ratio = 0.15, Anchoring anchoring = Anchoring::kAnchored) {
    return {.anchoring = anchoring, .policy = policy, .ratio = ratio, .share_prefix = false};
  }

  std::mt19937 random_{20261121};
  std::unique_ptr<ModelRuntime> runtime_;
  std::unique_ptr<store::ChunkStore> chunk_store_;
  std::unique_ptr<PromptRunner> runner_;
};

}  // namespace kvblend
