// Every model family: a small random model against what Hugging Face transformers computes with it
// (tests/fixtures/make_architectures.py), and the properties of blending with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/config.h"
#include "tests/unit/blend/blend_fixture.h"
#ifdef KVBLEND_TEST_EMULATES_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace kvblend {
namespace {

const std::string kModels[] = {
    "llama",   "llama3_rope",   "llama_yarn",   "llama_linear", "mistral",
    "smollm3", "qwen2",         "qwen3",        "gemma2",       "gemma3",
    "phi3",    "phi3_longrope", "granite",      "qwen3moe",     "qwen3moe_unnormalised",
    "mixtral", "gpt_oss",       "gpt_oss_mxfp4"};

std::string FixturePath(const std::string& name) {
  return std::string(KVBLEND_SOURCE_DIR "/tests/fixtures/architectures/") + name;
}

/// logits/NAME.logits; the script describes the format.
struct Expected {
  Tokens tokens;
  int32_t num_decoded = 0;
  int32_t vocab_size = 0;
  std::vector<int32_t> positions;
  std::vector<float> logits;  // [positions, vocab_size]
};

Expected ReadExpected(const std::string& name) {
  std::ifstream file(FixturePath("logits/" + name + ".logits"), std::ios::binary);
  const auto read = [&](auto* values, size_t count) {
    file.read(reinterpret_cast<char*>(values), static_cast<std::streamsize>(count * sizeof(*values)));
  };
  char magic[8] = {};
  int32_t header[4] = {};
  read(magic, 8);
  read(header, 4);
  EXPECT_EQ(std::string(magic, 8), "KVBARCH1");
  Expected expected;
  expected.num_decoded = header[1];
  expected.vocab_size = header[3];
  expected.tokens.resize(header[0]);
  expected.positions.resize(header[2]);
  expected.logits.resize(int64_t{header[2]} * header[3]);
  read(expected.tokens.data(), expected.tokens.size());
  read(expected.positions.data(), expected.positions.size());
  read(expected.logits.data(), expected.logits.size());
  EXPECT_TRUE(file && file.peek() == std::ifstream::traits_type::eof()) << name;
  return expected;
}

/// A model in fp32, ready to run.
struct LoadedModel {
  std::unique_ptr<ModelRuntime> runtime;
  std::unique_ptr<store::ChunkStore> chunk_store;
  std::unique_ptr<PromptRunner> runner;

  static LoadedModel Load(const std::string& path, const std::string& device) {
    const bool on_cuda = device == "cuda_emulated";
    EngineOptions options;
    options.model_path = path;
    options.correction = "none";
    options.device = device;
    options.num_threads = 2;
    options.gemm = "f32";
    options.kv_dtype = on_cuda ? "bf16" : "f32";
    options.page_size = 16;
    absl::StatusOr<std::unique_ptr<ModelRuntime>> runtime =
#ifdef KVBLEND_TEST_EMULATES_CUDA
        on_cuda ? ModelRuntime::LoadOn(kernels::CreateCudaBackend(1).value(), options) :
#endif
                ModelRuntime::Load(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    if (!runtime.ok()) return {};
    LoadedModel model;
    model.runtime = *std::move(runtime);
    model.chunk_store = *store::ChunkStore::Create(
        {.byte_budget = int64_t{64} << 20, .memory = model.runtime->host_memory.get()});
    model.runner = std::make_unique<PromptRunner>(*model.runtime, *model.chunk_store);
    return model;
  }
};

/// The logits behind every token: of three passes, and then of a token at a time.
std::vector<float> LogitsOf(PromptRunner& runner, const Expected& expected) {
  const auto begin = expected.tokens.begin(), prefill_end = expected.tokens.end() - expected.num_decoded;
  absl::StatusOr<PrefilledPrompt> prompt = runner.Prefill(MakeLayout({}, {}, Tokens(begin, begin + 1)),
                                                          {.reuse = Reuse::kNothing}, "", KeepRunning);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  if (!prompt.ok()) return {};
  std::vector<float> logits = prompt->logits;
  const auto extend = [&](auto from, auto to) {
    const auto more = runner.Extend(*prompt, Tokens(from, to), KeepRunning);
    EXPECT_TRUE(more.ok()) << more.status();
    if (more.ok()) logits.insert(logits.end(), more->begin(), more->end());
  };
  extend(begin + 1, begin + 150);
  extend(begin + 150, prefill_end);
  for (auto token = prefill_end; token != expected.tokens.end(); ++token) extend(token, token + 1);
  return logits;
}

/// Those of `logits` that are expected.
std::vector<float> AtPositions(const Expected& expected, const std::vector<float>& logits) {
  std::vector<float> chosen;
  for (const int32_t position : expected.positions) {
    const auto row = logits.begin() + int64_t{position} * expected.vocab_size;
    chosen.insert(chosen.end(), row, row + expected.vocab_size);
  }
  return chosen;
}

double WorstDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
  return worst;
}

// Of a model and a device.
class OnDevice : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  bool on_cuda() const { return std::get<1>(GetParam()) == "cuda_emulated"; }
  // Relative to the norm of all logits. fp32: sums in another order; bf16, which is what CUDA multiplies: a
  // few roundings of 2^-9 in every layer.
  double Rounding() const { return on_cuda() ? 0.04 : 2e-5; }
  void ExpectThoseOfTransformers(const std::vector<float>& logits, const Expected& expected) {
    ASSERT_EQ(logits.size(), expected.tokens.size() * expected.vocab_size);
    const std::vector<float> chosen = AtPositions(expected, logits);
    const double distance = RelativeDistance(chosen, expected.logits),
                 worst = WorstDifference(chosen, expected.logits);
    RecordProperty("distance", std::to_string(distance));
    RecordProperty("worst", std::to_string(worst));
    EXPECT_LT(distance, Rounding());
    if (!on_cuda()) {
      EXPECT_LT(worst, 1e-4) << "of logits of about 10";
    }
  }
};

class ArchitecturesTest : public OnDevice {
 protected:
  void SetUp() override {
    const auto& [model, device] = GetParam();
    model_ = LoadedModel::Load(FixturePath(model + ".gguf"), device);
    ASSERT_NE(model_.runner, nullptr);
  }

  Tokens RandomTokens(int32_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) {
      token = test_support::kTinyFirstByte + static_cast<int32_t>(random_() % 256);
    }
    return tokens;
  }
  void Store(const Tokens& chunk) {
    const auto stored = model_.runner->EnsureStored("", anchor_, chunk, {}, KeepRunning);
    ASSERT_TRUE(stored.ok()) << stored.status();
  }
  PrefilledPrompt Prefill(const prompt::PromptLayout& layout, const BlendOptions& options) {
    absl::StatusOr<PrefilledPrompt> prompt = model_.runner->Prefill(layout, options, "", KeepRunning);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return prompt.ok() ? *std::move(prompt) : PrefilledPrompt{};
  }
  std::vector<float> FullPrefill(const prompt::PromptLayout& layout) {
    return Prefill(layout, {.reuse = Reuse::kNothing}).logits;
  }

  std::mt19937 random_{20261123};
  const Tokens anchor_ = RandomTokens(19);
  LoadedModel model_;
};

TEST_P(ArchitecturesTest, LogitsAreThoseOfTransformers) {
  const Expected expected = ReadExpected(std::get<0>(GetParam()));
  ASSERT_EQ(expected.vocab_size, model_.runtime->config.vocab_size);
  ExpectThoseOfTransformers(LogitsOf(*model_.runner, expected), expected);
}

// Far beyond the windows of those that have one.
TEST_P(ArchitecturesTest, RatioOneEqualsFullPrefillForAnyOrderAndMisses) {
  const std::vector<Tokens> chunks = {RandomTokens(40), RandomTokens(33), RandomTokens(1), RandomTokens(50),
                                      RandomTokens(70)};
  const Tokens question = RandomTokens(13);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i != 1) Store(chunks[i]);
  }
  const std::vector<std::vector<int>> orders = {{0, 1, 2, 3, 4}, {4, 3, 1, 0}, {3, 3, 4, 0, 2, 4}};
  for (const std::vector<int>& order : orders) {
    std::vector<Tokens> placed;
    for (const int index : order) placed.push_back(chunks[index]);
    const prompt::PromptLayout layout = MakeLayout(anchor_, placed, question);
    const std::vector<float> full = FullPrefill(layout);
    for (const Policy policy : {Policy::kAll, Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
      const PrefilledPrompt blended = Prefill(layout, {.policy = policy, .ratio = 1.0});
      EXPECT_LT(RelativeDistance(blended.logits, full), Rounding())
          << Name(policy) << ", " << order.size() << " chunks";
    }
    if (on_cuda()) continue;
    // Guards the bound.
    EXPECT_GT(RelativeDistance(Prefill(layout, {.policy = Policy::kNone, .ratio = 0}).logits, full),
              2 * Rounding());
  }
}

TEST_P(ArchitecturesTest, TheFirstChunkIsExactWithNothingRecomputed) {
  const Tokens chunk = RandomTokens(90), question = RandomTokens(11);
  Store(chunk);
  const prompt::PromptLayout layout = MakeLayout(anchor_, {chunk}, question);
  PrefilledPrompt blended = Prefill(layout, {.policy = Policy::kNone, .ratio = 0});
  EXPECT_EQ(blended.report.chunks[0].source, ChunkSource::kExact);
  EXPECT_LT(RelativeDistance(blended.logits, FullPrefill(layout)), Rounding());
  // What follows reads the same KV.
  const Tokens more = RandomTokens(5);
  PrefilledPrompt full = Prefill(layout, {.reuse = Reuse::kNothing});
  EXPECT_LT(RelativeDistance(*model_.runner->Extend(blended, more, KeepRunning),
                             *model_.runner->Extend(full, more, KeepRunning)),
            Rounding());
}

// Far beyond the windows, a token or a few at a time, while pages that they have passed are given back to
// others.
TEST_P(ArchitecturesTest, DecodingDoesWithoutWhatWindowsHavePassed) {
  const Tokens question = RandomTokens(70), answer = RandomTokens(90);
  const prompt::PromptLayout layout = MakeLayout({}, {}, question);
  PrefilledPrompt whole = Prefill(layout, {.reuse = Reuse::kNothing}),
                  prompt = Prefill(layout, {.reuse = Reuse::kNothing});
  const std::vector<float> logits = *model_.runner->Extend(whole, answer, KeepRunning);
  std::vector<float> expected, actual;
  for (size_t begin = 0, count = 1; begin + count < answer.size(); begin += count, count = count % 3 + 1) {
    NextTokens next{&prompt, Tokens(answer.begin() + begin, answer.begin() + begin + count), {}};
    for (size_t i = begin; i < begin + count; ++i) {
      next.sampling.push_back({.scored_token = answer[i + 1]});
      expected.push_back(logits[i * model_.runtime->config.vocab_size + answer[i + 1]]);
    }
    const auto sampled = model_.runner->ExtendAll({&next, 1});
    ASSERT_TRUE(sampled.ok()) << sampled.status();
    for (const kernels::SampledToken& token : *sampled) actual.push_back(token.scored_logit);
    prompt.num_tokens += static_cast<int32_t>(count);
    if (begin % 8 == 0)
      Prefill(MakeLayout({}, {}, RandomTokens(40)), {.reuse = Reuse::kNothing});  // others take them
  }
  EXPECT_LT(RelativeDistance(actual, expected), Rounding());
  const bool has_windows = model_.runtime->page_pool->groups().largest_window() > 0;
  EXPECT_EQ(prompt.pages->num_dropped() > 0, has_windows);
  EXPECT_EQ(model_.runner->dropped_pages(), prompt.pages->num_dropped());
}

class FoldersTest : public OnDevice {};

// The same model as a Hugging Face folder, as transformers writes it, with the tokenizer that all of them
// share.
TEST_P(FoldersTest, LogitsAreThoseOfTheGgufFile) {
  namespace fs = std::filesystem;
  const auto& [model, device] = GetParam();
  const Expected expected = ReadExpected(model);
  const fs::path folder = fs::path(testing::TempDir()) / ("architecture_folder_" + model + "_on_" + device);
  fs::create_directories(folder);
  constexpr auto kOverwrite = fs::copy_options::overwrite_existing;
  for (const std::string file : {"config.json", "model.safetensors"}) {
    fs::copy_file(FixturePath("folders/" + model + "/" + file), folder / file, kOverwrite);
  }
  for (const std::string file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(FixturePath("folders/" + file), folder / file, kOverwrite);
  }
  const LoadedModel from_folder = LoadedModel::Load(folder, device);
  fs::remove_all(folder);
  ASSERT_NE(from_folder.runner, nullptr);
  const std::vector<float> logits = LogitsOf(*from_folder.runner, expected);
  ExpectThoseOfTransformers(logits, expected);
  if (device != "cpu") return;  // that both forms hold the same weights does not depend on the device
  const LoadedModel from_file = LoadedModel::Load(FixturePath(model + ".gguf"), device);
  ASSERT_NE(from_file.runner, nullptr);
  const std::vector<float> of_file = LogitsOf(*from_file.runner, expected);
  if (model == "llama3_rope") {  // the file's divisors of frequencies were rounded elsewhere
    EXPECT_LT(WorstDifference(logits, of_file), 1e-4);
  } else {
    EXPECT_EQ(logits, of_file);  // their weights are the same numbers
  }
}

// Where a limited context takes LongRoPE's frequencies for short ones, what is stored is another model's.
TEST(FingerprintTest, TellsLongRopeFromShort) {
  const std::string path = FixturePath("phi3_longrope.gguf");  // 512 tokens, 64 of them short
  const auto fingerprint = [&](int32_t max_context_tokens) {
    EngineOptions options;
    options.model_path = path;
    options.correction = "none";
    options.device = "reference";
    options.page_size = 16;
    options.max_context_tokens = max_context_tokens;
    const auto runtime = ModelRuntime::Load(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status();
    return runtime.ok() ? ToHex((*runtime)->key_space.model_fingerprint) : "";
  };
  const auto of_file = ModelFingerprints(path);
  ASSERT_TRUE(of_file.ok()) << of_file.status();
  ASSERT_EQ(of_file->size(), 2u);
  EXPECT_NE(of_file->front(), of_file->back());
  EXPECT_EQ(fingerprint(0), of_file->front());
  EXPECT_EQ(fingerprint(65), of_file->front());
  EXPECT_EQ(fingerprint(64), of_file->back());
  EXPECT_EQ(ModelFingerprints(FixturePath("phi3.gguf"))->size(), 1u);
}

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"reference", "cpu"};
  // A sanitizer makes the emulated device several times slower; its kernels run under it in the conformance
  // suite.
#if defined(KVBLEND_TEST_EMULATES_CUDA) && !defined(ABSL_HAVE_ADDRESS_SANITIZER)
  devices.emplace_back("cuda_emulated");
#endif
  return devices;
}

std::string ModelAndDevice(const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  return std::get<0>(info.param) + "_on_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Models, ArchitecturesTest,
                         testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(Devices())),
                         ModelAndDevice);
INSTANTIATE_TEST_SUITE_P(Models, FoldersTest,
                         testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(Devices())),
                         ModelAndDevice);

}  // namespace
}  // namespace kvblend
