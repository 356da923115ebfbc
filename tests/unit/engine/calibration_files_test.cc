#include "engine/serve/calibration/calibration_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace kvblend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::Status CheckFiles(const std::string& output, const std::string& resume) {
  CalibrationOptions options;
  options.resume = resume;
  return CheckCalibrationFiles(output, options);
}

TEST(CalibrationFilesTest, OneFileUnderTwoNamesIsRefused) {
  const test_support::TemporaryFolder temporary;
  const std::string folder = temporary.path();
  const auto check = [&](const std::string& output, const std::string& resume) {
    return CheckFiles(folder + output, folder + resume);
  };
  EXPECT_TRUE(check("/new", "/moments").ok());
  for (const char* resume : {"/new", "/./new", "//new"}) {
    EXPECT_THAT(check("/new", resume).ToString(), HasSubstr("are one file; allowed: two")) << resume;
  }
  EXPECT_THAT(check("/new.attention", "/./new").ToString(), HasSubstr("are one file"));
  std::ofstream(folder + "/there").flush();
  std::filesystem::create_hard_link(folder + "/there", folder + "/linked");
  EXPECT_THAT(check("/there", "/linked").ToString(), HasSubstr("are one file"));
  std::filesystem::create_directory_symlink(folder, folder + "/again");
  EXPECT_THAT(check("/new", "/again/new").ToString(), HasSubstr("are one file"));
  EXPECT_THAT(CheckFiles("calibration_files_test_new", "./calibration_files_test_new").ToString(),
              HasSubstr("are one file"));
}

TEST(CalibrationFilesTest, AFileThatIsReplacedTakesItsSizeTwice) {
  const test_support::TemporaryFolder temporary;
  const std::string path = temporary.path() + "/moments";
  EXPECT_TRUE(CheckRoomToReplace(path, 1000).ok());
  EXPECT_TRUE(CheckRoomToReplace("moments", 1000).ok());
  const absl::Status full = CheckRoomToReplace(path, int64_t{1} << 60);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.ToString(), HasSubstr("allowed: at least 2305843009213693952"));
  std::ofstream(path) << "what is there is one of the two";
  EXPECT_THAT(CheckRoomToReplace(path, int64_t{1} << 60).ToString(),
              HasSubstr("at least 2305843009213693921"));
}

TEST(CalibrationFilesTest, ASaveThatFailsDoesNotEndTheSteps) {
  const absl::Status full = absl::ResourceExhaustedError("the disk is full");
  absl::Status result = full;
  std::vector<int64_t> tried;
  const auto save = [&](int64_t steps) {
    tried.push_back(steps);
    return result;
  };
  PeriodicSaves saves(2, save);
  for (int64_t step = 2; step < 14; ++step) {
    if (step == 9) result = absl::OkStatus();
    EXPECT_TRUE(saves.Step(step, absl::OkStatus()).ok()) << step;
  }
  EXPECT_THAT(tried, ElementsAre(6, 10));
  const absl::Status stop = absl::CancelledError("stop");
  EXPECT_EQ(saves.Step(14, stop), stop);
  EXPECT_EQ(saves.Step(14, stop), stop);  // there is nothing more to save
  EXPECT_THAT(tried, ElementsAre(6, 10, 14));
  result = full;
  EXPECT_EQ(saves.Step(15, stop), full);  // that much is lost
  EXPECT_EQ(saves.End(15), full);
  result = absl::OkStatus();
  EXPECT_TRUE(saves.End(15).ok());
  EXPECT_THAT(tried, ElementsAre(6, 10, 14, 15, 15, 15));
}

}  // namespace
}  // namespace kvblend
