// The engine's blended prefill on the CUDA backend over the emulated device: a model of 3 layers with grouped
// queries, bf16 throughout.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda_emulation/runtime.h"
#include "tests/support/backend_decorator.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class CudaBlendTest : public testing::Test {
 protected:
  // Two computations of the same logits whose activations and KV are rounded to bf16 at other places: 2^-8
  // per rounding, a few of them per layer.
  static constexpr double kRounding = 0.03;
  // The anchor and the chunk behind it are read from the store: 2^-4 per value in fp8.
  static double Rounding(const std::string& chunk_format) { return chunk_format == "fp8" ? 0.15 : kRounding; }

  struct Setup {
    std::unique_ptr<ModelRuntime> runtime;
    std::unique_ptr<store::ChunkStore> chunk_store;
    std::unique_ptr<PromptRunner> runner;
  };

  void SetUp() override {
    path_ = test_support::TemporaryPath("cuda_blend_test.gguf");
    test_support::TinyModelSpec spec;
    spec.num_layers = 3;
    spec.hidden_dim = 64;
    spec.num_heads = 6;
    spec.num_kv_heads = 2;
    spec.head_dim = 16;
    spec.context_length = 512;
    ASSERT_TRUE(test_support::WriteTinyModel(path_, spec).ok());
  }

  Setup On(std::unique_ptr<kernels::Backend> backend, const std::string& chunk_format,
           const std::string& kv_dtype = "bf16") {
    EngineOptions options;
    options.model_path = path_;
    options.kv_dtype = kv_dtype;
    options.chunk_format = chunk_format;
    options.page_size = 16;
    Setup setup;
    auto runtime = ModelRuntime::LoadOn(std::move(backend), options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    setup.runtime = *std::move(runtime);
    setup.chunk_store = *store::ChunkStore::Create(
        {.byte_budget = int64_t{64} << 20, .memory = setup.runtime->host_memory.get()});
    setup.runner = std::make_unique<PromptRunner>(*setup.runtime, *setup.chunk_store);
    return setup;
  }
  Setup OnCuda(const std::string& chunk_format) {
    return On(kernels::CreateCudaBackend(1).value(), chunk_format);
  }

  Tokens RandomTokens(int32_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens)
      token = test_support::kTinyFirstByte + static_cast<int32_t>(random_() % 256);
    return tokens;
  }

  PrefilledPrompt Prefill(Setup& setup, const prompt::PromptLayout& layout, const BlendOptions& options) {
    auto prompt = setup.runner->Prefill(layout, options, "", KeepRunning);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return prompt.ok() ? *std::move(prompt) : PrefilledPrompt{};
  }
  PrefilledPrompt Prefill(Setup& setup, const prompt::PromptLayout& layout, Policy policy, double ratio) {
    BlendOptions options;
    options.policy = policy;
    options.ratio = ratio;
    return Prefill(setup, layout, options);
  }
  std::vector<float> FullPrefill(Setup& setup, const prompt::PromptLayout& layout) {
    BlendOptions options;
    options.reuse = Reuse::kNothing;
    return Prefill(setup, layout, options).logits;
  }
  void StoreAll(Setup& setup) {
    for (const Tokens& chunk : chunks_) {
      const auto stored = setup.runner->EnsureStored("", anchor_, chunk, {}, KeepRunning);
      ASSERT_TRUE(stored.ok()) << stored.status();
    }
  }

  std::mt19937 random_{20261121};
  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33), RandomTokens(1), RandomTokens(50)};
  const Tokens question_ = RandomTokens(13);
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, question_);
  std::string path_;
};

TEST_F(CudaBlendTest, FullPrefillIsTheReferences) {
  Setup cuda = OnCuda("bf16"), reference = On(kernels::CreateReferenceBackend(), "f32", "f32");
  EXPECT_LT(RelativeDistance(FullPrefill(cuda, layout_), FullPrefill(reference, layout_)), kRounding);
}

TEST_F(CudaBlendTest, RatioOneEqualsFullPrefillForEveryPolicyAndFormat) {
  for (const char* format : {"bf16", "int8", "fp8"}) {
    Setup cuda = OnCuda(format);
    StoreAll(cuda);
    {
      const auto stored = cuda.runner->EnsureStored("", anchor_, chunks_[0], {}, KeepRunning);
      EXPECT_TRUE(cuda_emulation::IsPinnedMemory(stored->entry->AcquireLayer(0)->k.data));
    }
    const std::vector<float> full = FullPrefill(cuda, layout_);
    for (const Policy policy : {Policy::kAll, Policy::kQuery, Policy::kHkvd}) {
      SCOPED_TRACE(std::string(format) + ", " + std::string(Name(policy)));
      const PrefilledPrompt blended = Prefill(cuda, layout_, policy, 1.0);
      EXPECT_LT(RelativeDistance(blended.logits, full), Rounding(format));
    }
    // Guards the bound: what is reused without recomputation is further away.
    if (std::string(format) == "bf16") {
      EXPECT_GT(RelativeDistance(Prefill(cuda, layout_, Policy::kNone, 0).logits, full), 2 * kRounding);
    }
  }
}

TEST_F(CudaBlendTest, PoliciesRecomputeTheSameNumberAsOnTheReference) {
  Setup cuda = OnCuda("bf16"), reference = On(kernels::CreateReferenceBackend(), "f32", "f32");
  StoreAll(cuda);
  StoreAll(reference);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone}) {
    SCOPED_TRACE(std::string(Name(policy)));
    const PrefilledPrompt on_cuda = Prefill(cuda, layout_, policy, 0.25);
    const PrefilledPrompt on_reference = Prefill(reference, layout_, policy, 0.25);
    EXPECT_EQ(on_cuda.report.recomputed_tokens, on_reference.report.recomputed_tokens);
    EXPECT_EQ(on_cuda.report.exact_tokens, on_reference.report.exact_tokens);
    if (policy == Policy::kNone ||
        policy == Policy::kLink) {  // the others may choose otherwise in a close call
      EXPECT_LT(RelativeDistance(on_cuda.logits, on_reference.logits), kRounding);
    }
  }
}

// The rows that are computed then begin before the chunks of which some tokens are recomputed.
TEST_F(CudaBlendTest, AMissingFirstChunkLeavesTheOthersRight) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
    SCOPED_TRACE(std::string(Name(policy)));
    Setup cuda = OnCuda("bf16"), reference = On(kernels::CreateReferenceBackend(), "f32", "f32");
    std::vector<PrefilledPrompt> blended;
    for (Setup* setup : {&cuda, &reference}) {
      for (size_t i = 1; i < chunks_.size(); ++i) {
        ASSERT_TRUE(setup->runner->EnsureStored("", anchor_, chunks_[i], {}, KeepRunning).ok());
      }
      blended.push_back(Prefill(*setup, layout_, policy, 0.25));
      EXPECT_GT(blended.back().report.recomputed_tokens, 0);
    }
    // Measured choices may be others in a close call.
    const double most = policy == Policy::kRandom ? kRounding : 1.0;
    EXPECT_LT(RelativeDistance(blended[0].logits, blended[1].logits), most);
  }
}

TEST_F(CudaBlendTest, DecodingGoesOnFromABlendedPrompt) {
  Setup cuda = OnCuda("bf16");
  StoreAll(cuda);
  const Tokens more = RandomTokens(3);
  Tokens longer = question_;
  longer.insert(longer.end(), more.begin(), more.end());
  PrefilledPrompt prompt = Prefill(cuda, layout_, Policy::kAll, 1.0);
  std::vector<float> logits;
  for (const int32_t token : more) logits = *cuda.runner->Extend(prompt, {token}, KeepRunning);
  EXPECT_LT(RelativeDistance(logits, FullPrefill(cuda, MakeLayout(anchor_, chunks_, longer))), kRounding);
}

// Answers come and go, in contexts of several lengths, some drawn and some not.
TEST_F(CudaBlendTest, StepsAsGraphsAnswerAsStepsOfSingleKernelsDo) {
  // A decorator's operations are called in every step.
  Setup graphs = OnCuda("bf16"),
        kernel_by_kernel = On(
            std::make_unique<test_support::BackendDecorator>(kernels::CreateCudaBackend(1).value()), "bf16");
  std::vector<prompt::PromptLayout> layouts;
  for (const int32_t length : {20, 90, 118, 250}) {
    layouts.push_back(MakeLayout(RandomTokens(length), {}, RandomTokens(5)));
  }
  const auto prefill_all = [&](Setup& setup) {
    std::vector<PrefilledPrompt> prompts;
    for (const prompt::PromptLayout& layout : layouts) {
      prompts.push_back(Prefill(setup, layout, Policy::kNone, 0));
    }
    return prompts;
  };
  std::vector<PrefilledPrompt> prompts = prefill_all(graphs), others = prefill_all(kernel_by_kernel);
  const cuda_emulation::WorkCounts before = cuda_emulation::CountWork();
  const int64_t graphs_before = cuda_emulation::CountRuntimeObjects().graphs;
  std::vector<int32_t> tokens(prompts.size(), 7);
  constexpr int32_t kSteps = 32;
  for (int32_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    std::vector<NextTokens> next, next_others;
    std::vector<size_t> rows;
    for (size_t i = 0; i < prompts.size(); ++i) {
      if ((step / 8 + i) % 3 == 0) continue;  // comes or goes every 8 steps
      const kernels::SamplingSpec spec{.temperature = i % 2 == 0 ? 0.0 : 1.5, .uniform = step / 32.0};
      next.push_back({&prompts[i], {tokens[i]}, {spec}});
      next_others.push_back({&others[i], {tokens[i]}, {spec}});
      rows.push_back(i);
    }
    const auto sampled = graphs.runner->ExtendAll(next),
               expected = kernel_by_kernel.runner->ExtendAll(next_others);
    ASSERT_TRUE(sampled.ok() && expected.ok()) << sampled.status() << expected.status();
    for (size_t row = 0; row < rows.size(); ++row) {
      ++next[row].prompt->num_tokens;
      ++next_others[row].prompt->num_tokens;
      EXPECT_EQ((*sampled)[row].token_id, (*expected)[row].token_id);
      EXPECT_EQ((*sampled)[row].logit, (*expected)[row].logit);
      tokens[rows[row]] = (*sampled)[row].token_id;
    }
  }
  // All but the first of each shape: 2 or 3 rows, 128 or 256 or 512 tokens.
  const int64_t launched = cuda_emulation::CountWork().graph_launches - before.graph_launches;
  EXPECT_EQ(launched, kSteps - (cuda_emulation::CountRuntimeObjects().graphs - graphs_before));
  EXPECT_GE(launched, kSteps - 6);
}

// Such a step is not repeated as a graph.
TEST_F(CudaBlendTest, StepsWhoseAttentionIsMeasuredAnswerAsOthersDo) {
  Setup measured = OnCuda("bf16"), plain = OnCuda("bf16"),
        reference = On(kernels::CreateReferenceBackend(), "f32", "f32");
  std::vector<prompt::Span> chunks;
  for (const prompt::Span& span : layout_.spans) {
    if (span.kind == PromptPart::kChunk) chunks.push_back(span);
  }
  PrefilledPrompt prompts[3];
  Setup* setups[] = {&measured, &plain, &reference};
  for (int i = 0; i < 3; ++i) {
    prompts[i] = Prefill(*setups[i], layout_, Policy::kAll, 1.0);
    absl::StatusOr<bool> ready = false;
    while (ready.ok() && !*ready) ready = setups[i]->runner->PrepareAttention();
    ASSERT_TRUE(ready.ok()) << ready.status();
  }
  const Tokens tokens = RandomTokens(8);
  for (size_t step = 0; step < tokens.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    std::vector<kernels::SampledToken> sampled[3];
    std::vector<std::vector<ChunkAttention>> attended[3];
    for (int i = 0; i < 3; ++i) {
      NextTokens next{&prompts[i], {tokens[step]}, {{}}};
      if (i == 2 || (i == 0 && step % 3 > 0)) next.chunks = chunks;
      auto result = setups[i]->runner->ExtendAll({&next, 1}, &attended[i]);
      ASSERT_TRUE(result.ok()) << result.status();
      sampled[i] = *std::move(result);
      ++prompts[i].num_tokens;
    }
    EXPECT_EQ(sampled[0][0].token_id, sampled[1][0].token_id);
    EXPECT_EQ(sampled[0][0].logit, sampled[1][0].logit);
    EXPECT_TRUE(attended[1][0].empty());
    EXPECT_EQ(attended[0][0].size(), step % 3 > 0 ? attended[2][0].size() : 0);
    for (const ChunkAttention& chunk : attended[0][0]) {
      const auto expected = std::find_if(attended[2][0].begin(), attended[2][0].end(),
                                         [&](const auto& other) { return other.index == chunk.index; });
      ASSERT_NE(expected, attended[2][0].end());
      // Rounded scores are exponents here, and what is repeated, the unit, is measured with the same
      // roundings.
      EXPECT_NEAR(chunk.attention, expected->attention, 4 * kRounding);
    }
  }
}

// Allocating, and making streams and events, costs milliseconds on a device or makes it wait for everything.
TEST_F(CudaBlendTest, PromptsAndStepsOfAKnownShapeAllocateNothing) {
  Setup cuda = OnCuda("int8");
  StoreAll(cuda);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd}) {
    SCOPED_TRACE(std::string(Name(policy)));
    cuda_emulation::RuntimeCounts before;
    for (int round = 0; round < 6; ++round) {
      if (round == 3) before = cuda_emulation::CountRuntimeObjects();
      Prefill(cuda, layout_, policy, 0.25);
    }
    EXPECT_EQ(cuda_emulation::CountRuntimeObjects(), before);
  }

  PrefilledPrompt one = Prefill(cuda, layout_, Policy::kQuery, 0.25),
                  other = Prefill(cuda, MakeLayout(anchor_, {}, question_), Policy::kQuery, 0.25);
  cuda_emulation::RuntimeCounts before;
  for (int32_t step = 0; step < 12; ++step) {
    if (step == 4) before = cuda_emulation::CountRuntimeObjects();
    const cuda_emulation::WorkCounts work = cuda_emulation::CountWork();
    const kernels::SamplingSpec draw{.temperature = 0.8, .top_p = 0.9, .uniform = 0.5};
    const auto sampled = cuda.runner->ExtendAll(
        std::vector<NextTokens>{{&one, {5}, {draw}}, {&other, {6}, {kernels::SamplingSpec{}}}});
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    ++one.num_tokens;
    ++other.num_tokens;
    if (step < 4) continue;
    EXPECT_EQ(cuda_emulation::CountWork().enqueued, work.enqueued + 1);  // the graph, and nothing else
    EXPECT_EQ(cuda_emulation::CountWork().graph_launches, work.graph_launches + 1);
  }
  EXPECT_EQ(cuda_emulation::CountRuntimeObjects(), before);
}

}  // namespace
}  // namespace kvblend
