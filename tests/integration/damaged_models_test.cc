// Two thousand damaged model files through the loader that the server uses, and what still loads through a
// prompt: refused with the file's name or run, never a crash, and no more memory than files of this size may
// take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/model_report.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/chunk_store.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 20261123;
constexpr int32_t kContextTokens = 64;
constexpr int kEditsOfAForm = 56;  // times 18 models in two forms: 2,016 files
// Beyond what the process had: all that a model of 200 KB, its context's bookkeeping and a prompt need, and
// what the allocator keeps.
[[maybe_unused]] constexpr int64_t kMemoryBytes = int64_t{256} << 20;

using Files = std::map<std::string, std::string>;  // by name

std::string ReadBytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What a JSON file's numbers become: sizes that are too large, too small, or of another type.
std::string EditJson(std::string text, std::mt19937_64& random) {
  constexpr std::array<const char*, 10> kValues = {"0",     "-1",   "1",  "3",         "2147483647",
                                                   "1e300", "null", "[]", "\"relu6\"", "9223372036854775808"};
  std::vector<size_t> values;  // behind each colon
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == ':') values.push_back(at + 1);
  }
  if (values.empty()) return text;
  const size_t begin = values[random() % values.size()];
  const size_t end = text.find_first_of(",}\n", begin);
  if (end == std::string::npos) return text;
  return text.replace(begin, end - begin, kValues[random() % kValues.size()]);
}

// `head`: how much of the front is edited most, where formats keep sizes and names.
std::string EditBytes(std::string bytes, size_t head, std::mt19937_64& random) {
  const int edits = 1 + static_cast<int>(random() % 3);
  for (int edit = 0; edit < edits && bytes.size() > 16; ++edit) {
    const size_t reach = random() % 8 == 0 ? bytes.size() : std::min(head, bytes.size());
    const size_t at = random() % (reach - 8);
    const size_t length = 1 + random() % 8;
    switch (random() % 6) {
      case 0:
        bytes.erase(at, length);
        break;
      case 1:
        bytes.insert(at, bytes.substr(random() % reach, length));
        break;
      case 2:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, random() % 2 ? '\xFF' : '\0');
        break;
      case 3:
        bytes.resize(random() % bytes.size());
        break;
      case 4:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      default:
        bytes[at] = static_cast<char>(random());
    }
  }
  return bytes;
}

void Damage(Files& files, std::mt19937_64& random) {
  auto file = files.begin();
  std::advance(file, random() % files.size());
  if (absl::EndsWith(file->first, ".json") && random() % 4 != 0) {
    file->second = EditJson(std::move(file->second), random);
  } else {
    file->second = EditBytes(std::move(file->second), 8192, random);
  }
}

int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// Loads the model and, where that is possible, runs a prompt and a token.
absl::Status LoadAndRun(const std::string& path) {
  EngineOptions options;
  options.model_path = path;
  options.correction = "none";
  options.device = "cpu";
  options.num_threads = 1;
  options.gemm = "f32";
  options.max_context_tokens = kContextTokens;
  absl::StatusOr<std::unique_ptr<ModelRuntime>> runtime = ModelRuntime::Load(options);
  if (!runtime.ok()) return runtime.status();
  const auto chunk_store = *store::ChunkStore::Create({.byte_budget = 1 << 20});
  PromptRunner runner(**runtime, *chunk_store);
  const absl::StatusOr<PrefilledPrompt> prompt =
      runner.Prefill(MakeLayout({}, {}, {0, 1, 2, 3, 1}), {.reuse = Reuse::kNothing}, "", KeepRunning);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt.status();
}

class DamagedModelsTest : public testing::TestWithParam<std::string> {
 protected:
  // The files of the parameter's model, NAME.gguf or a folder's; relative to the folder that they are written
  // to.
  static Files Original() {
    const fs::path fixtures = fs::path(KVBLEND_SOURCE_DIR) / "tests/fixtures/architectures";
    if (fs::is_regular_file(fixtures / GetParam())) return {{"model.gguf", ReadBytes(fixtures / GetParam())}};
    Files files;
    for (const fs::path& folder : {fixtures / "folders", fixtures / "folders" / GetParam()}) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.is_regular_file()) files[entry.path().filename()] = ReadBytes(entry.path());
      }
    }
    return files;
  }

  // Writes the files to `folder` and gives the path to load.
  static std::string Write(const Files& files, const fs::path& folder) {
    for (const auto& [name, bytes] : files) std::ofstream(folder / name, std::ios::binary) << bytes;
    return files.size() == 1 ? folder / files.begin()->first : folder;
  }
};

TEST_P(DamagedModelsTest, AreRefusedByNameOrRun) {
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed + std::hash<std::string>()(GetParam()));
  const Files original = Original();
  int refused = 0;
  {
    const test_support::TemporaryFolder folder;
    ASSERT_TRUE(LoadAndRun(Write(original, folder.path())).ok());
  }
  [[maybe_unused]] const int64_t before = PeakBytes();
  for (int edit = 0; edit < kEditsOfAForm; ++edit) {
    const test_support::TemporaryFolder folder;
    Files files = original;
    Damage(files, random);
    const std::string path = Write(files, folder.path());
    const absl::Status status = LoadAndRun(path);
    if (!absl::IsDataLoss(status)) {  // of values, which are looked at only when they are loaded
      const absl::StatusOr<ModelReport> report = InspectModel(path, kContextTokens);
      EXPECT_EQ(report.ok() ? report->runs.code() : report.status().code(), status.code())
          << "edit " << edit << ": " << status
          << "; inspected: " << (report.ok() ? report->runs : report.status());
    }
    if (status.ok()) continue;
    ++refused;
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss,
                                     absl::StatusCode::kUnimplemented, absl::StatusCode::kResourceExhausted))
        << "edit " << edit << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder.path())) << "edit " << edit;
  }
  EXPECT_GT(refused, kEditsOfAForm / 4);
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER)  // which keeps what was freed for a while
  EXPECT_LE(PeakBytes() - before, kMemoryBytes);
#endif
}

std::vector<std::string> Models() {
  std::vector<std::string> models;
  for (const char* name : {"llama", "llama3_rope", "llama_yarn", "llama_linear", "mistral", "smollm3",
                           "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "phi3_longrope",
                           "qwen3moe", "qwen3moe_unnormalised", "mixtral", "gpt_oss", "gpt_oss_mxfp4"}) {
    models.push_back(absl::StrCat(name, ".gguf"));
    models.push_back(name);
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, DamagedModelsTest, testing::ValuesIn(Models()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace kvblend
