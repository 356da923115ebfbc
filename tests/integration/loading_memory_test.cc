// Loading a model takes little more memory than what the file's weights become: a process of its own loads
// files of a hundred megabytes, and the kernel tells the most that it had.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/base/config.h"
#include "engine/runtime/model_runtime.h"
#include "tests/integration/large_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend {
namespace {

using model::TensorType;
using test_support::LargeModel;
using test_support::ModelForm;

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

class LoadingMemoryTest : public ::testing::TestWithParam<LargeModel> {};
INSTANTIATE_TEST_SUITE_P(Forms, LoadingMemoryTest,
                         ::testing::Values(LargeModel{"Q4_K", TensorType::kQ4_K, 6},
                                           LargeModel{"Q6_K", TensorType::kQ6_K, 3},
                                           LargeModel{"Q8_0", TensorType::kQ8_0, 2},
                                           LargeModel{"BF16", TensorType::kBF16, 1},
                                           LargeModel{"InParts", TensorType::kQ8_0, 4, ModelForm::kParts},
                                           LargeModel{"Experts", TensorType::kQ4_K, 10, ModelForm::kFile, 4},
                                           LargeModel{"Folder", TensorType::kBF16, 1, ModelForm::kFolder}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LoadingMemoryTest, PeakIsAtMostATenthAboveTheWeights) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer's memory is not the model's";
#endif
  const LargeModel model = GetParam();
  const test_support::TemporaryFolder folder;
  const std::string small = folder.path() + "/small.gguf";
  ASSERT_TRUE(test_support::WriteTinyModel(small).ok());
  const test_support::LargeModelFiles files = test_support::WriteLargeModel(folder.path(), model);
  const Loading loading = LoadInAProcessOfItsOwn(small, files.path);
  // Codes stay codes; other values become what is computed with, f32 here.
  const bool is_coded = model.type != TensorType::kBF16;
  const int64_t weight_bytes = is_coded ? files.bytes : files.weights * int64_t{sizeof(float)};
  EXPECT_GT(loading.told, 3);
  EXPECT_LT(loading.first_done, loading.total / 2);
  EXPECT_TRUE(loading.rises);
  EXPECT_EQ(loading.last_done, loading.total);
  EXPECT_LE(loading.total, files.bytes);
  EXPECT_GT(loading.total, files.bytes / 10 * 9);
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
