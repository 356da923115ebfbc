// Weights in mapped files: the same answers, in memory that the operating system may take back.
#include <sys/mman.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::HasSubstr;

constexpr char kFileName[] = "/kvblend-weights-";

struct Mapping {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  int64_t resident_bytes = 0;
};

/// This process's mappings of files for weights.
std::vector<Mapping> MappedWeights() {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/smaps");
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    const size_t dash = line.find('-'), space = line.find(' ');
    if (dash != std::string::npos && dash < space && line.find(':') > space) {
      is_ours = line.find(kFileName) != std::string::npos;
      if (!is_ours) continue;
      const uint64_t begin = std::stoull(line, nullptr, 16),
                     end = std::stoull(line.substr(dash + 1), nullptr, 16);
      found.push_back({reinterpret_cast<std::byte*>(begin), end - begin, 0});
    } else if (is_ours && line.starts_with("Rss:")) {
      found.back().resident_bytes = std::stoll(line.substr(4)) * 1024;
    }
  }
  return found;
}

int64_t ResidentBytes() {
  int64_t bytes = 0;
  for (const Mapping& mapping : MappedWeights()) bytes += mapping.resident_bytes;
  return bytes;
}

class MapWeightsTest : public EngineFixture, public testing::WithParamInterface<std::string> {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = "cpu";
    options.num_threads = 2;
    options.model_path = ArchitecturePath(GetParam());
    options.map_weights = folder_;
    return options;
  }
  void SetUp() override {}

  std::vector<int32_t> Answer() {
    const auto answer = Generate(Request());
    EXPECT_TRUE(answer->status.ok()) << answer->status;
    return answer->token_ids;
  }

  const test_support::TemporaryFolder temporary_;
  std::string folder_;
};

TEST_P(MapWeightsTest, AnswersAreTheSameAndMemoryCanBeTaken) {
  EngineFixture::SetUp();
  const std::vector<int32_t> expected = Answer();
  EXPECT_EQ(MappedWeights().size(), 0u);
  engine_.reset();
  folder_ = temporary_.path();
  EngineFixture::SetUp();
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "files have no name";
  EXPECT_EQ(Answer(), expected);
  ASSERT_GT(MappedWeights().size(), 0u);
  EXPECT_GT(ResidentBytes(), 0);
  for (const Mapping& mapping : MappedWeights()) {
    ASSERT_EQ(msync(mapping.begin, mapping.bytes, MS_SYNC), 0);
    ASSERT_EQ(madvise(mapping.begin, mapping.bytes, MADV_DONTNEED), 0);
  }
  EXPECT_EQ(ResidentBytes(), 0);
  EXPECT_EQ(Answer(), expected);
  EXPECT_GT(ResidentBytes(), 0);
  engine_.reset();
  EXPECT_EQ(MappedWeights().size(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, MapWeightsTest, testing::Values("qwen3moe", "llama"),
                         [](const auto& info) { return info.param; });

absl::Status StartIn(const std::string& folder, const std::string& device = "cpu") {
  EngineOptions options;
  options.device = device;
  options.self_check = false;
  options.model_path = ArchitecturePath("qwen3moe");
  options.map_weights = folder;
  return Engine::Create(options).status();
}

TEST(MapWeightsErrorsTest, NameTheFolder) {
  const test_support::TemporaryFolder temporary;
  const std::string missing = temporary.path() + "/none";
  const absl::Status status = StartIn(missing);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(status.message(), HasSubstr("folder for weights '" + missing + "': no file can be made there"));
  const absl::Status other = StartIn(temporary.path(), "reference");
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument) << other;
  EXPECT_THAT(other.message(), HasSubstr("on device reference; allowed: cpu"));
}

TEST(MapWeightsErrorsTest, NoRoom) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const test_support::TemporaryFolder temporary;
  const absl::Status status = StartIn(temporary.path());
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("no room for"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

}  // namespace
}  // namespace kvblend
