// Loading a model takes little more memory than what the file's weights become: a process of its own loads files of a
// hundred megabytes, and the kernel tells the most that it had.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "engine/model/gguf/gguf_types.h"
#include "engine/runtime/model_runtime.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend {
namespace {

using model::TensorType;

constexpr int64_t kHidden = 2048, kFfn = 5632, kHeads = 16, kKvHeads = 4, kHeadDim = 128, kVocab = 4096;

// Blocks of random codes, and of scales that are finite.
std::string RandomTensor(TensorType type, int64_t elements, std::mt19937_64& random) {
  const model::TensorTypeTraits& traits = model::TraitsOf(type);
  std::string bytes(elements / traits.block_elements * traits.block_bytes, '\0');
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
  const auto set_halves = [&](int64_t offset, int64_t stride, int count) {
    for (size_t at = offset; at < bytes.size(); at += stride) {
      const uint16_t halves[] = {0x1400, 0x1400};  // 2^-10
      std::memcpy(bytes.data() + at, halves, count * sizeof(uint16_t));
    }
  };
  if (type == TensorType::kQ4_K) set_halves(0, traits.block_bytes, 2);
  if (type == TensorType::kQ6_K) set_halves(208, traits.block_bytes, 1);
  if (type == TensorType::kQ8_0) set_halves(0, traits.block_bytes, 1);
  if (type == TensorType::kBF16) {
    for (size_t at = 1; at < bytes.size(); at += 2) bytes[at] = 0x3C;
  }
  return bytes;
}

struct Model {
  TensorType type;
  int32_t layers;
};

// A llama with a tied output. Returns the number of its weights.
int64_t WriteModel(const std::string& path, const Model& model) {
  std::mt19937_64 random(7);
  test_support::TinyModelSpec spec;
  spec.num_layers = model.layers;
  std::vector<std::string> tokens = test_support::TinyTokens();
  while (static_cast<int64_t>(tokens.size()) < kVocab)
    tokens.push_back("<" + std::to_string(tokens.size()) + ">");
  std::vector<int32_t> token_types(kVocab, 1);
  std::fill_n(token_types.begin(), test_support::kTinyFirstByte, 3);  // control tokens
  test_support::GgufBuilder builder = test_support::TinyModelBuilder(spec);
  builder.SetStringArray("tokenizer.ggml.tokens", tokens)
      .SetInt32Array("tokenizer.ggml.token_type", token_types)
      .SetUint32("llama.embedding_length", kHidden)
      .SetUint32("llama.feed_forward_length", kFfn)
      .SetUint32("llama.attention.head_count", kHeads)
      .SetUint32("llama.attention.head_count_kv", kKvHeads)
      .SetUint32("llama.attention.key_length", kHeadDim)
      .SetUint32("llama.attention.value_length", kHeadDim)
      .SetUint32("llama.rope.dimension_count", kHeadDim)
      .SetUint32("llama.context_length", 256)
      .SetUint32("llama.vocab_size", kVocab);
  int64_t weights = 0;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    weights += rows * cols;
    builder.SetTensor(name, {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                      static_cast<uint32_t>(model.type), RandomTensor(model.type, rows * cols, random));
  };
  const std::vector<float> ones(kHidden, 1.0f);
  matrix("token_embd.weight", kVocab, kHidden);
  builder.SetTensorF32("output_norm.weight", {kHidden}, ones);
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    builder.SetTensorF32(prefix + "attn_norm.weight", {kHidden}, ones)
        .SetTensorF32(prefix + "ffn_norm.weight", {kHidden}, ones);
    matrix(prefix + "attn_q.weight", kHeads * kHeadDim, kHidden);
    matrix(prefix + "attn_k.weight", kKvHeads * kHeadDim, kHidden);
    matrix(prefix + "attn_v.weight", kKvHeads * kHeadDim, kHidden);
    matrix(prefix + "attn_output.weight", kHidden, kHeads * kHeadDim);
    matrix(prefix + "ffn_gate.weight", kFfn, kHidden);
    matrix(prefix + "ffn_up.weight", kFfn, kHidden);
    matrix(prefix + "ffn_down.weight", kHidden, kFfn);
  }
  std::ofstream(path, std::ios::binary) << builder.Build();
  return weights;
}

// A line of /proc/self/status, in bytes; -1 where there is none.
int64_t StatusOf(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

struct Loading {
  int64_t peak_bytes = -1;  // above what the process had before; -1: it cannot be told
  int64_t told = 0;         // times
  int64_t first_done = -1, last_done = -1, total = -1;
  bool rises = true;
};

absl::StatusOr<std::unique_ptr<ModelRuntime>> Load(const std::string& path,
                                                   const Engine::LoadObserver& on_load = nullptr) {
  EngineOptions options;
  options.model_path = path;
  options.correction = "none";
  options.device = "cpu";
  options.num_threads = 2;
  options.gemm = "f32";
  return ModelRuntime::Load(options, on_load);
}

// `small` is loaded first, so that the program's code is in memory before the measurement.
Loading LoadInAProcessOfItsOwn(const std::string& small, const std::string& path) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    Loading loading;
    const bool runs = Load(small).ok();
    malloc_trim(0);                                 // what was freed would hide as much of what is allocated
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    const int64_t before = StatusOf("VmRSS"), peak_before = StatusOf("VmHWM");
    const auto runtime = Load(path, [&](int64_t done, int64_t total) {
      if (loading.told++ == 0) loading.first_done = done;
      loading.rises = loading.rises && done >= loading.last_done && done <= total;
      loading.last_done = done;
      loading.total = total;
    });
    if (!runtime.ok()) std::fprintf(stderr, "%s\n", std::string(runtime.status().message()).c_str());
    const bool reset = runs && before > 0 && peak_before < before + (int64_t{16} << 20);
    if (runtime.ok() && reset) loading.peak_bytes = StatusOf("VmHWM") - before;
    const bool written = write(ends[1], &loading, sizeof(loading)) == sizeof(loading);
    _exit(runtime.ok() && written ? 0 : 1);
  }
  close(ends[1]);
  Loading loading;
  const bool read_all = read(ends[0], &loading, sizeof(loading)) == sizeof(loading);
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(read_all);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return loading;
}

class LoadingMemoryTest : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Types, LoadingMemoryTest,
                         ::testing::Values(Model{TensorType::kQ4_K, 6}, Model{TensorType::kQ6_K, 3},
                                           Model{TensorType::kQ8_0, 2}, Model{TensorType::kBF16, 1}),
                         [](const auto& info) { return std::string(model::TraitsOf(info.param.type).name); });

TEST_P(LoadingMemoryTest, PeakIsAtMostATenthAboveTheWeights) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer's memory is not the model's";
#endif
  const Model model = GetParam();
  const bool is_coded = model.type != TensorType::kBF16;
  const std::string path = test_support::TemporaryPath("loading_memory.gguf");
  const std::string small = path + ".small";
  ASSERT_TRUE(test_support::WriteTinyModel(small).ok());
  const int64_t weights = WriteModel(path, model);
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  const Loading loading = LoadInAProcessOfItsOwn(small, path);
  std::filesystem::remove(path);
  std::filesystem::remove(small);
  // Codes stay codes; other values become what is computed with, f32 here.
  const int64_t weight_bytes = is_coded ? file_bytes : weights * int64_t{sizeof(float)};
  EXPECT_GT(loading.told, 3);
  EXPECT_LT(loading.first_done, loading.total / 2);
  EXPECT_TRUE(loading.rises);
  EXPECT_EQ(loading.last_done, loading.total);
  EXPECT_LE(loading.total, file_bytes);
  EXPECT_GT(loading.total, file_bytes / 10 * 9);
  if (loading.peak_bytes < 0) GTEST_SKIP() << "the kernel does not begin the peak of memory anew";
  const double ratio = static_cast<double>(loading.peak_bytes) / static_cast<double>(weight_bytes);
  std::printf("%.1f MiB of weights, peak %.1f MiB, ratio %.3f\n", static_cast<double>(weight_bytes) / 0x1p20,
              static_cast<double>(loading.peak_bytes) / 0x1p20, ratio);
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_LE(ratio, 1.1);
  EXPECT_GT(ratio, 0.8) << "it was not loaded";
}

}  // namespace
}  // namespace kvblend
