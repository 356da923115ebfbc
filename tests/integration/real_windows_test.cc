// Blending far beyond the sliding windows of a published model: Gemma 3 270M, of whose 18 layers 15 see 512
// tokens. tests/unit/blend/window_test.cc holds what is left out to the byte, on a small model.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

// Sums of hundreds of terms in another order, through 18 layers.
constexpr double kRounding = 1e-4;

class RealWindowsTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
    GTEST_SKIP() << "takes minutes under AddressSanitizer, which window_test runs under";
#endif
    const std::string path = KVBLEND_SOURCE_DIR "/models/gemma-3-270m-q4_k_m.gguf";
    if (!std::filesystem::exists(path))
      GTEST_SKIP() << "no " << path << ": run deploy/fetch_model.sh gemma3-270m";
    EngineOptions options;
    options.model_path = path;
    options.correction = "none";
    options.device = "cpu";
    options.chat_format = "plain";
    options.num_threads = 2;
    options.gemm = "f32";
    options.kv_dtype = "f32";
    options.max_context_tokens = 4096;
    auto runtime = ModelRuntime::Load(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    chunk_store_ =
        *store::ChunkStore::Create({.byte_budget = int64_t{1} << 30, .memory = runtime_->host_memory.get()});
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
    for (const Tokens& chunk : chunks_) {
      const auto stored = runner_->EnsureStored("", anchor_, chunk, {}, KeepRunning);
      ASSERT_TRUE(stored.ok()) << stored.status();
    }
  }

  Tokens RandomTokens(int32_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) token = 1000 + static_cast<int32_t>(random_() % 200000);
    return tokens;
  }
  PrefilledPrompt Prefill(const BlendOptions& options) {
    absl::StatusOr<PrefilledPrompt> prompt = runner_->Prefill(layout_, options, "", KeepRunning);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return prompt.ok() ? *std::move(prompt) : PrefilledPrompt{};
  }

  std::mt19937 random_{20261125};
  const Tokens anchor_ = RandomTokens(30);
  const std::vector<Tokens> chunks_ = {RandomTokens(300), RandomTokens(400), RandomTokens(250),
                                       RandomTokens(350), RandomTokens(300)};
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, RandomTokens(20));
  std::unique_ptr<ModelRuntime> runtime_;
  std::unique_ptr<store::ChunkStore> chunk_store_;
  std::unique_ptr<PromptRunner> runner_;
};

TEST_F(RealWindowsTest, RatioOneIsFullPrefillAndReuseLeavesOutWhatNobodySees) {
  PrefilledPrompt full = Prefill({.reuse = Reuse::kNothing});
  PrefilledPrompt blended = Prefill({.policy = Policy::kQuery, .ratio = 1.0});
  EXPECT_LT(RelativeDistance(blended.logits, full.logits), kRounding);
  const Tokens more = RandomTokens(5);
  EXPECT_LT(RelativeDistance(*runner_->Extend(blended, more, KeepRunning),
                             *runner_->Extend(full, more, KeepRunning)),
            kRounding);

  const PrefilledPrompt reused = Prefill({.policy = Policy::kNone, .ratio = 0});
  EXPECT_GT(RelativeDistance(reused.logits, full.logits), 10 * kRounding) << "guards the bound";
  // The question's rows see the last two chunks, which take 650 of 1,630 stored tokens, in 15 layers of 18.
  const double stored = static_cast<double>(layout_.token_ids.size() - 20), unseen = stored - 650;
  int64_t bytes = 0;
  for (const Tokens& chunk : chunks_)
    bytes += *store::ChunkKv::SizeBytes(runtime_->key_space.format, static_cast<int32_t>(chunk.size()));
  const double share = static_cast<double>(reused.report.loading.skipped_bytes) / static_cast<double>(bytes);
  std::printf("not loaded: %lld bytes, %.1f%% of what is stored of the chunks\n",
              static_cast<long long>(reused.report.loading.skipped_bytes), 100 * share);
  EXPECT_NEAR(share, 15.0 / 18 * unseen / stored, 0.02);
}

}  // namespace
}  // namespace kvblend
