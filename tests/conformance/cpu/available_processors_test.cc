#include "kernels/cpu/machine/available_processors.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace kvblend::kernels {
namespace {

/// A system with these files.
std::string RootWith(const std::map<std::string, std::string>& files) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) /
                                     testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(root);
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = root / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  return root.string();
}

TEST(AvailableProcessorsTest, AreAtLeastOne) { EXPECT_GE(AvailableProcessors(), 1); }

TEST(AvailableProcessorsTest, AGroupAndAllAboveItBound) {
  EXPECT_EQ(AllowedByQuota(RootWith({{"proc/self/cgroup", "0::/pod/server\n"},
                                     {"sys/fs/cgroup/pod/cpu.max", "150000 100000\n"},
                                     {"sys/fs/cgroup/pod/server/cpu.max", "max 100000\n"}})),
            1.5);
  EXPECT_EQ(AllowedByQuota(RootWith({{"proc/self/cgroup", "0::/pod/server\n"},
                                     {"sys/fs/cgroup/pod/cpu.max", "400000 100000\n"},
                                     {"sys/fs/cgroup/pod/server/cpu.max", "50000 100000\n"}})),
            0.5);
}

TEST(AvailableProcessorsTest, InAContainerTheTopIsItsOwnGroup) {
  EXPECT_EQ(AllowedByQuota(
                RootWith({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "200000 100000\n"}})),
            2);
  EXPECT_EQ(AllowedByQuota(RootWith({{"proc/self/cgroup", "0::/system/docker-1.scope\n"},
                                     {"sys/fs/cgroup/cpu.max", "200000 100000\n"}})),
            2);
}

TEST(AvailableProcessorsTest, VersionOneHasFilesOfItsOwn) {
  const std::string groups = "5:memory:/docker/1\n4:cpuacct,cpu:/docker/1\n3:cpuset:/\n0::/docker/1\n";
  EXPECT_EQ(AllowedByQuota(RootWith({{"proc/self/cgroup", groups},
                                     {"sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "300000\n"},
                                     {"sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n"},
                                     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                                     {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}})),
            3);
}

TEST(AvailableProcessorsTest, WithoutAQuotaNothingBounds) {
  EXPECT_EQ(AllowedByQuota(RootWith({})), std::nullopt);
  EXPECT_EQ(AllowedByQuota(RootWith({{"proc/self/cgroup", "0::/user\n"}})), std::nullopt);
  for (const char* line : {"max 100000\n", "", "0 0\n", "many\n", "-1 100000\n"}) {
    EXPECT_EQ(
        AllowedByQuota(RootWith({{"proc/self/cgroup", "0::/\nodd\n"}, {"sys/fs/cgroup/cpu.max", line}})),
        std::nullopt)
        << line;
  }
}

}  // namespace
}  // namespace kvblend::kernels
