// Prompts, answers, scores and chunk puts side by side: they take turns, nobody waits for a long prompt, and
// what comes out is what each would have got alone.
#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

constexpr int32_t kNumLayers = 8;

class ServingTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = "cpu";
    options.num_threads = 2;
    options.gemm = "f32";
    options.itl_target_seconds = 1e-9;  // a step of decoding after every unit of a prompt
    options.max_prefills = 3;
    options.max_batch_size = 6;
    options.page_size = 16;
    options.learn_correction = "off";
    return options;
  }
  test_support::TinyModelSpec ModelSpec() override {
    return {.num_layers = kNumLayers, .context_length = 2048};
  }

  static GenerateRequest Computed(GenerateRequest request) {
    request.blend.reuse = Reuse::kNothing;
    request.blend.store_misses = false;
    return request;
  }
};

TEST_F(ServingTest, AnswersGoOnWhileALongPromptIsPrefilled) {
  const auto answer = std::make_shared<GenerateRecorder>(), other = std::make_shared<GenerateRecorder>();
  absl::Notification started;
  answer->on_prompt = [&] { started.Notify(); };
  GenerateRequest request = Computed(Request());
  request.sampling.max_tokens = 1500;
  const auto handle = *engine_->Generate(request, answer);
  started.WaitForNotification();
  const int64_t steps_before = engine_->Stats().decode_steps;
  int64_t steps_after = 0;
  other->on_prompt = [&] { steps_after = engine_->Stats().decode_steps; };
  GenerateRequest longer = Computed(Request({std::string(900, 'x')}));
  const auto other_handle = *engine_->Generate(longer, other);
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
  // A layer has three units at least.
  EXPECT_GE(steps_after - steps_before, 3 * kNumLayers - 1);
  EXPECT_GE(engine_->Stats().prompt_slices, 3 * kNumLayers - 1);
  EXPECT_GT(engine_->Stats().prompt_slice_seconds, 0);
  handle->Cancel();
  answer->Wait();
}

TEST_F(ServingTest, AShortPromptOvertakesALongOneAndACancelledOneGivesItsPagesBack) {
  // Held before its first token is delivered, so that both prompts are there when the engine goes on.
  HeldAnswer first;
  const auto first_handle = *engine_->Generate(Computed(Request()), first.recorder);
  first.started.WaitForNotification();
  std::vector<std::string> order;
  const auto named = [&](const std::string& name) {
    auto recorder = std::make_shared<GenerateRecorder>();
    recorder->on_prompt = [&order, name] { order.push_back(name); };  // on the engine's thread
    return recorder;
  };
  const auto long_one = named("long"), short_one = named("short"),
             gone = std::make_shared<GenerateRecorder>();
  const auto long_handle = *engine_->Generate(Computed(Request({std::string(1200, 'x')})), long_one);
  const auto gone_handle = *engine_->Generate(Computed(Request({std::string(1000, 'y')})), gone);
  const auto short_handle = *engine_->Generate(Computed(Request()), short_one);
  short_one->on_prompt = [&] {
    order.push_back("short");
    gone_handle->Cancel();  // somewhere in its prompt
  };
  first.go_on.Notify();
  EXPECT_TRUE(long_one->Wait().status.ok()) << long_one->status;
  EXPECT_EQ(gone->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(order, (std::vector<std::string>{"short", "long"}));
  first.recorder->Wait();
  short_one->Wait();
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
  EXPECT_EQ(engine_->Stats().requests_running, 0);
}

/// What the products and the pages are computed in: as served on this machine, and in each arithmetic that
/// every machine has.
struct Arithmetic {
  const char* name;
  const char* gemm;
  const char* kv_dtype;
  test_support::TinyWeightType weights;
};

class MixtureTest : public ServingTest, public testing::WithParamInterface<Arithmetic> {
 protected:
  EngineOptions Options() override {
    EngineOptions options = ServingTest::Options();
    options.gemm = GetParam().gemm;
    options.kv_dtype = GetParam().kv_dtype;
    return options;
  }
  test_support::TinyModelSpec ModelSpec() override {
    test_support::TinyModelSpec spec = ServingTest::ModelSpec();
    spec.weight_type = GetParam().weights;
    return spec;
  }
};

TEST_P(MixtureTest, RandomMixturesGiveWhatEachRequestGetsAlone) {
  const std::vector<std::string> texts = {"Paris is in France.\n", std::string(300, 'a'),
                                          std::string(120, 'b'), "Rome is in Italy.\n",
                                          std::string(700, 'c')};
  ASSERT_TRUE(Put(texts)->status.ok());
  std::mt19937 random(20261123);
  constexpr int kRequests = 15;
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) {
    std::vector<std::string> chunks = texts;
    std::shuffle(chunks.begin(), chunks.end(), random);
    chunks.resize(1 + random() % chunks.size());
    if (random() % 3 == 0) chunks.push_back("missing " + std::to_string(i));
    GenerateRequest request = Request(chunks);
    request.blend.policy = static_cast<Policy>(random() % 6);
    request.blend.ratio = static_cast<double>(random() % 100) / 100;
    request.blend.store_misses = false;
    request.sampling.max_tokens = static_cast<int32_t>(1 + random() % 40);
    request.sampling.temperature = static_cast<float>(random() % 2);
    request.sampling.seed = 1 + i;  // 0 would be another one each time
    // Where one key's answers have all rows, those of others take turns with them.
    request.caller.fairness_key = i % 4 == 0 ? "few" : "many";
    if (i % 5 == 0) request.caller.priority = Priority::kLow;
    alone.push_back(Generate(request)->token_ids);
    requests.push_back(std::move(request));
  }
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    std::vector<int> order(kRequests);
    for (int i = 0; i < kRequests; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::shared_ptr<GenerateRecorder>> recorders(kRequests);
    std::vector<std::shared_ptr<RequestHandle>> handles;
    const auto put = std::make_shared<PutRecorder>();
    for (const int i : order) {
      recorders[i] = std::make_shared<GenerateRecorder>();
      handles.push_back(*engine_->Generate(requests[i], recorders[i]));
      if (handles.size() == kRequests / 2) {
        PutChunksRequest chunks;
        chunks.chunks = {"other " + std::to_string(round), std::string(200, static_cast<char>('p' + round))};
        handles.push_back(*engine_->PutChunks(chunks, put));
      }
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    }
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(recorders[i]->Wait().status.ok()) << recorders[i]->status;
      EXPECT_EQ(recorders[i]->token_ids, alone[i]) << i;
    }
    EXPECT_TRUE(put->Wait().status.ok()) << put->status;
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Arithmetics, MixtureTest,
    testing::Values(Arithmetic{"InF32", "f32", "f32", test_support::TinyWeightType::kF32},
                    Arithmetic{"AsServed", "auto", "auto", test_support::TinyWeightType::kQ8_0},
                    Arithmetic{"In16Bits", "int16", "bf16", test_support::TinyWeightType::kQ8_0},
                    Arithmetic{"In8Bits", "int8", "int8", test_support::TinyWeightType::kQ8_0}),
    [](const auto& info) { return info.param.name; });

/// Without and with guesses at what answers say next.
class DraftTest : public ServingTest {
 protected:
  EngineOptions Options() override {
    EngineOptions options = ServingTest::Options();
    options.max_draft_tokens = max_draft_tokens_;
    return options;
  }
  static GenerateRequest Numbered(int i) {
    GenerateRequest request =
        Computed(Request({"Paris is in France. Rome is in Italy.", std::string(30 + i, 'a')}));
    request.sampling.max_tokens = 60 + i;
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.3f * static_cast<float>(i % 3);
    request.sampling.repetition_penalty = i % 5 == 4 ? 1.2f : 1.0f;
    request.sampling.top_logprobs = i % 2 == 0 ? 2 : -1;
    request.sampling.seed = 77 + i;
    if (i % 4 == 1) request.sampling.stop = {"a"};
    return request;
  }
  std::vector<std::shared_ptr<GenerateRecorder>> GenerateAll(int count, bool together) {
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (int i = 0; i < count; ++i) {
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(Numbered(i), recorders.back()));
      if (!together) recorders.back()->Wait();
    }
    for (const auto& recorder : recorders) recorder->Wait();
    return recorders;
  }
  int32_t max_draft_tokens_ = 0;
};

TEST_F(DraftTest, GuessesChangeNoAnswerAndSaveSteps) {
  constexpr int kRequests = 12;
  const auto expected = GenerateAll(kRequests, /*together=*/false);
  EXPECT_EQ(engine_->Stats().drafted_tokens, 0);
  const int64_t steps = engine_->Stats().decode_steps;
  max_draft_tokens_ = 3;
  engine_.reset();
  SetUp();
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    const auto drafted = GenerateAll(kRequests, together);
    for (int i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(drafted[i]->token_ids, expected[i]->token_ids);
      EXPECT_EQ(drafted[i]->text, expected[i]->text);
      EXPECT_EQ(drafted[i]->result.finish_reason, expected[i]->result.finish_reason);
    }
    const EngineStats stats = engine_->Stats();
    // A random model repeats itself.
    EXPECT_GT(stats.accepted_draft_tokens, 0);
    EXPECT_GE(stats.drafted_tokens, stats.accepted_draft_tokens);
    if (!together) {
      EXPECT_EQ(stats.decode_steps + stats.accepted_draft_tokens, steps);
    }
  }
}

}  // namespace
}  // namespace kvblend
