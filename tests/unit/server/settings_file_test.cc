#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/server_config.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SettingsFileTest : public testing::Test {
 protected:
  ParsedConfig Parse(const std::string& lines) {
    const std::string path = folder_.path() + "/server.conf";
    std::ofstream(path) << lines;
    const char* arguments[] = {"kvblend-server", "--model=m", "--config", path.c_str()};
    return ParseConfig(4, arguments, "1.2.3");
  }

 private:
  const test_support::TemporaryFolder folder_;
};

TEST_F(SettingsFileTest, ValuesStandAsTheyAre) {
  const ParsedConfig parsed = Parse(
      "grpc-address=[::1]:50051\n"
      "http-address = [::1]:8090  # of the operators\n"
      "api-address=[::1]:8000\n"
      "chunk-redis=[::1]:6379,redis.example:6380\n"
      "chunk-disk-path=/var/cache/a,b#c\n"
      "api-model=a,b\n"
      "chunk-namespace-shares=a=0.5,b=0.25");
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  const ServerConfig& config = *parsed.config;
  EXPECT_EQ(config.grpc_address, "[::1]:50051");
  EXPECT_EQ(config.http_address, "[::1]:8090");
  EXPECT_EQ(config.api.address, "[::1]:8000");
  EXPECT_EQ(config.engine.chunk_disk_path, "/var/cache/a,b#c");
  EXPECT_EQ(config.api.model_id, "a,b");
  EXPECT_EQ(config.engine.chunk_redis.nodes, "[::1]:6379,redis.example:6380");
}

TEST_F(SettingsFileTest, QuotesHoldBlanksAndBracketsSeveralValues) {
  const ParsedConfig parsed = Parse(
      "api-model=\"My model, 2\"\n"
      "map-weights = 'two words'\n"
      "api-allowed-hosts=[\"a\",\n  \"b\"]\n"
      "no-self-check=true\n"
      "threads=3");
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  EXPECT_EQ(parsed.config->api.model_id, "My model, 2");
  EXPECT_EQ(parsed.config->engine.map_weights, "two words");
  EXPECT_THAT(parsed.config->api.allowed_hosts, ElementsAre("a", "b"));
  EXPECT_FALSE(parsed.config->engine.self_check);
  EXPECT_EQ(parsed.config->engine.num_threads, 3);
}

TEST_F(SettingsFileTest, ASettingIsThereOnce) {
  for (const std::string lines : {"threads=1\nthreads=2\n", "threads=1\npage-size=64\nthreads=2\n",
                                  "no-self-check=true\nno-self-check=true\n"}) {
    const ParsedConfig parsed = Parse(lines);
    EXPECT_EQ(parsed.exit_code, 2) << lines;
    EXPECT_THAT(parsed.error_output, HasSubstr("is there twice")) << lines;
  }
}

}  // namespace
}  // namespace kvblend::server
