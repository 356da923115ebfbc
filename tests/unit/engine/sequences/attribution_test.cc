// What answers attend to, compared with one pass over prompt and answer on the reference backend.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "engine/blend/paged_sequence.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/attribution/answer_attention.h"
#include "engine/serve/sequences/attribution/copy_layers.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using test_support::TinyModelSpec;
using testing::IsEmpty;
using testing::SizeIs;

// With characters of several tokens.
const std::vector<std::string> kChunks = {
    "Paris.", "Rome \xE2\x82\xAC \xF0\x9F\x98\x80", "O", "Vienna.\n", "Li", "Paris Paris"};

class AttributionTest : public EngineFixture, public testing::WithParamInterface<std::string> {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = GetParam();
    if (GetParam() == "cpu") options.gemm = "f32";
    options.num_threads = 2;
    options.page_size = 8;
    options.max_draft_tokens = max_draft_tokens_;
    return options;
  }
  TinyModelSpec ModelSpec() override { return {.num_layers = 3}; }

  static GenerateRequest Attributed(int32_t max_tokens = 24) {
    GenerateRequest request = Request(kChunks);
    // Long, so that the chunks get less than what is repeated gets of this random model, which is all that is
    // counted.
    for (int i = 0; i < 40; ++i) request.prompt.system_text += " Answer, please.";
    request.blend.reuse = Reuse::kNothing;
    request.sampling.max_tokens = max_tokens;
    request.sampling.attribution = true;
    return request;
  }

  int32_t max_draft_tokens_ = 0;
};

absl::StatusOr<CopyLayers> FindCopyLayers(ModelRuntime& runtime) {
  KVBLEND_ASSIGN_OR_RETURN(const auto search, CopyLayerSearch::Create(runtime));
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(const bool done, search->Step());
    if (done) return search->Found();
  }
}

std::unique_ptr<ModelRuntime> LoadReference(const TinyModelSpec& spec, int32_t window = 0,
                                            int32_t context = 0) {
  EngineOptions options;
  options.device = "reference";
  options.kv_dtype = "f32";
  options.max_context_tokens = context;
  options.model_path = test_support::TemporaryPath("attribution.gguf");
  test_support::GgufBuilder model = test_support::TinyModelBuilder(spec);
  if (window > 0) model.SetUint32("llama.attention.sliding_window", window);
  std::ofstream(options.model_path, std::ios::binary) << model.Build();
  auto runtime = ModelRuntime::Load(options);
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  return *std::move(runtime);
}

/// The attention of each row from `first` on over the tokens up to itself, mean over heads: [layer][row -
/// first][token]. One pass runs all rows; what each of them attends to is asked for by itself.
std::vector<std::vector<std::vector<float>>> AttentionOfRows(ModelRuntime& runtime,
                                                             const std::vector<int32_t>& tokens,
                                                             int32_t first) {
  const auto count = static_cast<int32_t>(tokens.size());
  kv::SequencePages pages(*runtime.page_pool);
  EXPECT_TRUE(pages.Grow(count).ok());
  const blend::PagedSequence sequence(*runtime.backend, *runtime.page_pool, pages);
  const auto all = *sequence.PlanRange(0, count, count);
  const model::Transformer& transformer = *runtime.transformer;
  model::PassState state;
  std::vector<std::vector<std::vector<float>>> attention(runtime.config.num_layers);
  EXPECT_TRUE(transformer.Begin(*runtime.stream, tokens, state).ok());
  for (int32_t layer = 0; layer < runtime.config.num_layers; ++layer) {
    const kernels::KvPagesView kv = runtime.page_pool->Layer(layer);
    EXPECT_TRUE(transformer.ProjectQkv(*runtime.stream, layer, state).ok());
    EXPECT_TRUE(transformer.WriteKv(*runtime.stream, layer, *all, state, kv).ok());
    EXPECT_TRUE(transformer.RotateQueries(*runtime.stream, layer, *all, state).ok());
    for (int32_t row = first; row < count; ++row) {
      const int32_t seen = row + 1;
      const auto one = *sequence.PlanRange(row, seen, seen);
      std::vector<float>& mass = attention[layer].emplace_back(seen);
      EXPECT_TRUE(runtime.backend
                      ->AttentionMass(*runtime.stream, *one, transformer.Queries(state).Rows(row, 1),
                                      transformer.attention(layer), kv,
                                      {mass.data(), kernels::DataType::kF32, 1, seen, seen})
                      .ok());
    }
    EXPECT_TRUE(transformer.AttendAndMlp(*runtime.stream, layer, *all, kv, state).ok());
  }
  return attention;
}

TEST_P(AttributionTest, ATokenIsAttributedToTheChunksWithTheTokensThatItAttendsToMost) {
  const auto answer = Generate(Attributed());
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  ASSERT_THAT(answer->result.attributions, SizeIs(24));
  const auto runtime = LoadReference(ModelSpec());
  const auto layout =
      prompt::BuildPromptLayout(Attributed().prompt, *runtime->tokenizer, *runtime->chat_template, {});
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto found = FindCopyLayers(*runtime);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<int32_t> tokens(layout->token_ids.begin(), layout->token_ids.end());
  tokens.insert(tokens.end(), answer->token_ids.begin(), answer->token_ids.end() - 1);
  const auto attention = AttentionOfRows(*runtime, tokens, static_cast<int32_t>(layout->token_ids.size()));
  double worst = 0;
  int below_one = 0;
  for (size_t i = 0; i + 1 < answer->token_ids.size(); ++i) {
    std::vector<std::pair<double, int32_t>> expected;
    for (const prompt::Span& span : layout->spans) {
      if (span.kind != PromptPart::kChunk) continue;
      double most = 0;
      for (int32_t position = span.begin; position < span.end; ++position) {
        double sum = 0;
        for (const int32_t layer : found->layers) sum += attention[layer][i][position];
        most = std::max(most, sum / static_cast<double>(found->layers.size()) / found->strength);
      }
      expected.emplace_back(-std::min(most, 1.0), span.chunk_index);
    }
    std::sort(expected.begin(), expected.end());
    const std::vector<ChunkAttention>& chunks = answer->result.attributions[i].chunks;
    ASSERT_THAT(chunks, SizeIs(kMaxAttributedChunks));
    for (size_t rank = 0; rank < chunks.size(); ++rank) {
      below_one += chunks[rank].attention < 1 ? 1 : 0;
      worst = std::max(worst, std::abs(chunks[rank].attention + expected[rank].first));
      const bool tied = rank + 1 < expected.size() && expected[rank + 1].first - expected[rank].first < 1e-4;
      const bool tied_before = rank > 0 && expected[rank].first - expected[rank - 1].first < 1e-4;
      if (tied || tied_before) continue;
      EXPECT_EQ(chunks[rank].index, expected[rank].second) << i << " " << rank;
    }
  }
  EXPECT_LT(worst, 1e-4) << "fp32 through three layers";
  EXPECT_GT(below_one, 24) << "what is cut off at 1 compares nothing";
  EXPECT_THAT(answer->result.attributions.back().chunks, IsEmpty());  // chosen, but not read
}

TEST_P(AttributionTest, TokensAreTheSameWithout) {
  GenerateRequest request = Attributed();
  const auto with = Generate(request);
  request.sampling.attribution = false;
  const auto without = Generate(request);
  EXPECT_EQ(with->token_ids, without->token_ids);
  EXPECT_EQ(with->text, without->text);
  EXPECT_THAT(without->result.attributions, IsEmpty());
}

TEST_P(AttributionTest, GuessesChangeNothing) {
  const auto expected = Generate(Attributed(60));
  max_draft_tokens_ = 4;
  engine_.reset();
  SetUp();
  const auto answer = Generate(Attributed(60));
  ASSERT_EQ(answer->token_ids, expected->token_ids);
  EXPECT_GT(engine_->Stats().accepted_draft_tokens, 0);
  for (size_t i = 0; i < 60; ++i) {
    const auto& chunks = answer->result.attributions[i].chunks;
    const auto& others = expected->result.attributions[i].chunks;
    ASSERT_EQ(chunks.size(), others.size()) << i;
    for (size_t rank = 0; rank < chunks.size(); ++rank) {
      EXPECT_NEAR(chunks[rank].attention, others[rank].attention, 1e-4) << i;
    }
  }
}

TEST_P(AttributionTest, PlacesCoverTheTextAndStopStringsAreNoPartOfIt) {
  GenerateRequest request = Attributed();
  const auto whole = Generate(request);
  ASSERT_TRUE(whole->status.ok()) << whole->status;
  const auto check = [](const GenerateRecorder& answer) {
    int64_t at = 0;
    for (const AttributedToken& token : answer.result.attributions) {
      EXPECT_EQ(token.begin_byte, at);
      EXPECT_GE(token.end_byte, at);
      at = token.end_byte;
    }
    EXPECT_EQ(at, static_cast<int64_t>(answer.text.size()));
  };
  check(*whole);
  const auto piece = std::find_if(whole->deltas.begin() + 8, whole->deltas.end(),
                                  [](const TextDelta& delta) { return !delta.text.empty(); });
  ASSERT_NE(piece, whole->deltas.end());
  request.sampling.stop = {piece->text};
  const auto stopped = Generate(request);
  ASSERT_LT(stopped->text.size(), whole->text.size());
  check(*stopped);
}

TEST_P(AttributionTest, ReplacementsBelongToTheTokensThatBeganTheCharacter) {
  GenerateRequest request = Attributed(5);
  request.sampling.logit_bias = {{test_support::kTinyFirstByte + 0xE4, 100}};
  const auto answer = Generate(request);
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  EXPECT_EQ(answer->text, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD") << "the last one by the end of the answer";
  ASSERT_THAT(answer->result.attributions, SizeIs(5));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(answer->result.attributions[i].begin_byte, 3 * i);
    EXPECT_EQ(answer->result.attributions[i].end_byte, 3 * i + 3);
  }
}

TEST_P(AttributionTest, WithoutChunksThereIsNothingToAttribute) {
  GenerateRequest request = Attributed();
  request.prompt.chunks.clear();
  const auto answer = Generate(request);
  ASSERT_TRUE(answer->status.ok()) << answer->status;
  EXPECT_THAT(answer->result.attributions, IsEmpty());
}

// One that does not ask, beside one that does.
TEST_P(AttributionTest, OnlyThoseWhoAskAreTold) {
  HeldAnswer first;
  GenerateRequest quiet = Attributed();
  quiet.sampling.attribution = false;
  const auto held = *engine_->Generate(quiet, first.recorder);
  first.started.WaitForNotification();
  const auto second = std::make_shared<GenerateRecorder>();
  const auto handle = *engine_->Generate(Attributed(), second);
  first.go_on.Notify();
  first.recorder->Wait();
  second->Wait();
  EXPECT_EQ(first.recorder->token_ids, second->token_ids);
  EXPECT_THAT(first.recorder->result.attributions, IsEmpty());
  ASSERT_THAT(second->result.attributions, SizeIs(24));
  EXPECT_THAT(second->result.attributions[0].chunks, SizeIs(kMaxAttributedChunks));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttributionTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

TEST(CopyLayersTest, AFewLayersAndWhatTheyGive) {
  const auto runtime = LoadReference({.num_layers = 5});
  const auto found = FindCopyLayers(*runtime);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GE(found->layers.size(), 1u);
  EXPECT_LE(found->layers.size(), static_cast<size_t>(kMaxCopyLayers));
  EXPECT_TRUE(std::is_sorted(found->layers.begin(), found->layers.end()));
  EXPECT_GT(found->strength, 0);
  EXPECT_LE(found->strength, 1);
  const auto again = FindCopyLayers(*runtime);
  EXPECT_EQ(found->layers, again->layers);
  EXPECT_EQ(found->strength, again->strength);
}

TEST(CopyLayersTest, WindowsEverywhereAndShortContexts) {
  // 64 tokens come twice, so nothing of the first time is in the window.
  const auto windows = FindCopyLayers(*LoadReference({}, /*window=*/16));
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(windows->layers, std::vector<int32_t>({0, 1}));
  EXPECT_TRUE(FindCopyLayers(*LoadReference({}, 0, /*context=*/5)).ok());
  const auto none = FindCopyLayers(*LoadReference({}, 0, /*context=*/4));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.status().message()), testing::HasSubstr("context of 4 tokens"));
}

}  // namespace
}  // namespace kvblend
