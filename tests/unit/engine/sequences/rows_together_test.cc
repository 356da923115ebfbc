// Rows that share a step of decoding, as many as ModelWeights::max_rows_together says, have the bits that
// each gets alone.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/blend/blend_fixture.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

struct Case {
  const char* name;
  const char* gemm;
  const char* kv_dtype;
  test_support::TinyModelSpec spec;
  int64_t least;  // so many rows at least
};

// As wide as that sums of products come in several steps.
test_support::TinyModelSpec Model(test_support::TinyWeightType type, int32_t num_experts = 0,
                                  bool quantized_router = true) {
  return {.num_layers = num_experts > 0 ? 12 : 2,
          .hidden_dim = 256,
          .head_dim = 64,
          .ffn_dim = 64,
          .num_experts = num_experts,
          .weight_type = type,
          .quantized_router = quantized_router};
}
constexpr auto kCodes = test_support::TinyWeightType::kQ8_0, kValues = test_support::TinyWeightType::kF32;

class RowsTogetherTest : public testing::TestWithParam<Case> {};

TEST_P(RowsTogetherTest, HaveTheBitsThatEachGetsAlone) {
  EngineOptions options;
  options.device = "cpu";
  options.num_threads = 2;
  options.gemm = GetParam().gemm;
  options.kv_dtype = GetParam().kv_dtype;
  options.page_size = 16;
  options.correction = "none";
  options.model_path = test_support::TemporaryPath("rows_together_test.gguf");
  ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, GetParam().spec).ok());
  const auto runtime = ModelRuntime::Load(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const auto chunk_store = store::ChunkStore::Create({.byte_budget = int64_t{1} << 20});
  PromptRunner runner(**runtime, **chunk_store);

  const int64_t most = (*runtime)->weights.max_rows_together((*runtime)->config);
  EXPECT_GE(most, GetParam().least);
  const auto count = static_cast<int32_t>(std::min<int64_t>(most, 40));
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(test_support::kTinyFirstByte + (7 * i) % 256);
  // The sum over all logits is one of whole numbers: it tells any of them that differs.
  const kernels::SamplingSpec spec{.num_top = 20};
  std::vector<std::vector<kernels::SampledToken>> ways;
  for (const int32_t at_a_time : {count, 1}) {
    auto prompt =
        runner.Prefill(MakeLayout({}, {}, {1, 2, 3, 4, 5}), {.reuse = Reuse::kNothing}, "", KeepRunning);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    auto& sampled = ways.emplace_back();
    for (int32_t begin = 0; begin < count; begin += at_a_time) {
      const auto first = tokens.begin() + begin;
      const NextTokens next{&*prompt, {first, first + at_a_time}, {static_cast<size_t>(at_a_time), spec}};
      const auto more = runner.ExtendAll({&next, 1});
      ASSERT_TRUE(more.ok()) << more.status();
      sampled.insert(sampled.end(), more->begin(), more->end());
      prompt->num_tokens += at_a_time;
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    const kernels::SampledToken &together = ways[0][i], &alone = ways[1][i];
    EXPECT_EQ(together.max_logit, alone.max_logit);
    EXPECT_EQ(together.weight_sum, alone.weight_sum);
    for (int32_t rank = 0; rank < alone.num_top; ++rank) {
      EXPECT_EQ(together.top_ids[rank], alone.top_ids[rank]) << rank;
      EXPECT_EQ(together.top_logits[rank], alone.top_logits[rank]) << rank;
    }
  }
}

// Published files have the matrix that chooses experts as values, whatever the types of the others.
INSTANTIATE_TEST_SUITE_P(Models, RowsTogetherTest,
                         testing::Values(Case{"ValuesInF32", "f32", "f32", Model(kValues), 4},
                                         Case{"ValuesAsServed", "auto", "auto", Model(kValues), 4},
                                         Case{"CodesAsServed", "auto", "auto", Model(kCodes), 32},
                                         Case{"CodesIn16Bits", "int16", "bf16", Model(kCodes), 32},
                                         Case{"CodesIn8Bits", "int8", "int8", Model(kCodes), 40},
                                         Case{"MixtureOfCodes", "auto", "auto", Model(kCodes, 8), 32},
                                         Case{"MixtureAsServed", "auto", "auto", Model(kCodes, 8, false), 32},
                                         Case{"MixtureInF32", "f32", "f32", Model(kCodes, 8, false), 32},
                                         Case{"MixtureIn16Bits", "int16", "bf16", Model(kCodes, 8, false),
                                              32},
                                         Case{"MixtureIn8Bits", "int8", "int8", Model(kCodes, 8, false), 40}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvblend
