// Layers with sliding windows: what nobody sees is neither loaded nor computed, and the answer stays what it
// was.
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/support/backend_decorator.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

constexpr int32_t kWindow = 24;

/// Counts what is placed, and the rows that attend.
class CountsWork final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  int64_t placed_rows = 0;
  int64_t attending_rows = 0;

 protected:
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    placed_rows += plan.num_rows();
    return BackendDecorator::DoKvLoad(stream, plan, rope, k, v, pages);
  }
  absl::Status DoSelectiveAttention(Stream& stream, const Plan& plan, View q,
                                    const kernels::AttentionSpec& spec, kernels::KvPagesView pages,
                                    Out out) override {
    attending_rows += plan.num_rows();
    return BackendDecorator::DoSelectiveAttention(stream, plan, q, spec, pages, out);
  }
};

/// The fixture's model of four layers with these windows.
class WindowTest : public BlendFixture {
 protected:
  std::unique_ptr<kernels::Backend> MakeBackend() override {
    auto counting = std::make_unique<CountsWork>(GetParam() == "reference" ? kernels::CreateReferenceBackend()
                                                                           : MakeCpuBackend());
    work_ = counting.get();
    return counting;
  }

  static std::unique_ptr<kernels::Backend> MakeCpuBackend() {
    kernels::CpuBackendOptions options{.num_threads = 2};
    options.gemm = kernels::CpuBackendOptions::Gemm::kF32;
    return *kernels::CreateCpuBackend(options);
  }

  void SetWindows(const std::vector<int32_t>& windows) {
    for (size_t layer = 0; layer < windows.size(); ++layer) {
      runtime_->config.layers[layer].sliding_window = windows[layer];
    }
    runner_.reset();
    const model::ModelConfig& config = runtime_->config;
    auto pool = kv::PagePool::Create(*runtime_->backend, {.num_layers = config.num_layers,
                                                          .windows = windows,
                                                          .num_kv_heads = config.num_kv_heads,
                                                          .head_dim = config.head_dim,
                                                          .page_size = 16,
                                                          .num_pages = 600,
                                                          .dtype = kernels::DataType::kF32});
    ASSERT_TRUE(pool.ok()) << pool.status();
    runtime_->page_pool = *std::move(pool);
    chunk_store_ = *store::ChunkStore::Create({.byte_budget = int64_t{256} << 20});
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
    for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  }

  /// Stored bytes of so many tokens in one layer, as sections are padded.
  int64_t LayerBytes(int32_t tokens) const {
    const store::KvFormat& format = runtime_->key_space.format;
    return *store::ChunkKv::SizeBytes(format, tokens) / format.num_layers;
  }

  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(64), RandomTokens(50),
                                       RandomTokens(37)};
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, RandomTokens(7));
  CountsWork* work_ = nullptr;
};

const std::vector<std::vector<int32_t>> kWindows = {{kWindow, kWindow, kWindow, kWindow},
                                                    {kWindow, kWindow, 0, kWindow},
                                                    {0, kWindow, kWindow, 0},
                                                    {0, 0, 0, 0}};

TEST_P(WindowTest, RatioOneIsFullPrefillFarBeyondTheWindowAndSoIsWhatFollows) {
  for (const std::vector<int32_t>& windows : kWindows) {
    SCOPED_TRACE(testing::PrintToString(windows));
    SetWindows(windows);
    PrefilledPrompt full = FullPrefill(layout_);
    const Tokens next = RandomTokens(kWindow + 9);
    const std::vector<float> full_next = *runner_->Extend(full, next, KeepRunning);
    for (const Policy policy : {Policy::kAll, Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
      PrefilledPrompt blended = Prefill(layout_, With(policy, 1.0));
      EXPECT_LT(RelativeDistance(blended.logits, full.logits), kRounding) << Name(policy);
      EXPECT_LT(RelativeDistance(*runner_->Extend(blended, next, KeepRunning), full_next), kRounding)
          << Name(policy);
    }
  }
}

// Pages are handed on with what was in them: not even that may show through where nothing was loaded.
TEST_P(WindowTest, WhatIsNotLoadedChangesNoAnswer) {
  for (const std::vector<int32_t>& windows : kWindows) {
    SCOPED_TRACE(testing::PrintToString(windows));
    SetWindows(windows);
    for (const Policy policy : {Policy::kNone, Policy::kQuery, Policy::kHkvd, Policy::kLink}) {
      const std::vector<float> expected = Prefill(layout_, With(policy, 0.1)).logits;
      for (int i = 0; i < 3; ++i) {
        const PrefilledPrompt others =
            FullPrefill(MakeLayout(RandomTokens(90), {RandomTokens(80)}, RandomTokens(20)));
        PrefilledPrompt again = Prefill(layout_, With(policy, 0.1));  // in pages that others had
        EXPECT_EQ(again.logits, expected) << Name(policy);
      }
    }
  }
}

TEST_P(WindowTest, ReuseLoadsWhatTheQuestionSeesAndCountsTheRest) {
  SetWindows({kWindow, kWindow, 0, kWindow});
  work_->placed_rows = 0;
  // Only the report: a prompt's pages are gone before the next pool is made.
  const PromptReport report = Prefill(layout_, With(Policy::kNone, 0)).report;
  const int32_t question = 7, last_chunk = 37,
                stored = static_cast<int32_t>(layout_.token_ids.size()) - question;
  // In layers with windows the question's rows see the last chunk only, in the third layer all.
  EXPECT_EQ(work_->placed_rows, 3 * last_chunk + stored);
  int64_t skipped = 3 * LayerBytes(21);
  for (size_t i = 0; i + 1 < chunks_.size(); ++i)
    skipped += 3 * LayerBytes(static_cast<int32_t>(chunks_[i].size()));
  EXPECT_EQ(report.loading.skipped_bytes, skipped);

  SetWindows({0, 0, 0, 0});
  EXPECT_EQ(Prefill(layout_, With(Policy::kNone, 0)).report.loading.skipped_bytes, 0);
}

TEST_P(WindowTest, FullPrefillDropsRowsThatNoLaterLayerLooksBackTo) {
  const auto tokens = static_cast<int64_t>(layout_.token_ids.size());
  SetWindows({0, kWindow, kWindow, 0});
  work_->attending_rows = 0;
  FullPrefill(layout_);
  EXPECT_EQ(work_->attending_rows,
            3 * tokens + 1);  // the last layer sees all; of its rows the last one goes on
  SetWindows({0, kWindow, kWindow, kWindow});
  work_->attending_rows = 0;
  FullPrefill(layout_);
  EXPECT_EQ(work_->attending_rows, (3 * (kWindow - 1) + 1) + (2 * (kWindow - 1) + 1) + kWindow + 1);
}

INSTANTIATE_TEST_SUITE_P(Backends, WindowTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
