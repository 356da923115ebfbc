#include "server/config/server_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "engine/api/option_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ParsedConfig Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "kvblend-server");
  return ParseConfig(static_cast<int>(arguments.size()), arguments.data(), "1.2.3");
}

/// The words of `line` are the arguments.
ParsedConfig ParseLine(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return Parse(std::move(arguments));
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

/// The settings of whoever runs the tests (KVBLEND_MODEL, say) are not to be seen.
class ServerConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string entry = *variable;
      if (entry.rfind("KVBLEND_", 0) == 0) names.push_back(entry.substr(0, entry.find('=')));
    }
    for (const std::string& name : names) unsetenv(name.c_str());
  }
};

TEST_F(ServerConfigTest, TheHttpApisFlags) {
  const ParsedConfig parsed = ParseLine(
      "--model m --api-address [::1]:9 --api-model name --api-max-connections 5 --api-max-header-bytes 2KiB "
      "--api-max-unsent-bytes 1MiB --api-request-timeout 1.5 --api-idle-timeout 2 --api-write-timeout 3 "
      "--api-allowed-hosts a.example,b");
  ASSERT_TRUE(parsed.config.has_value()) << parsed.error_output;
  const ApiConfig& api = parsed.config->api;
  EXPECT_EQ(api.address, "[::1]:9");
  EXPECT_THAT(api.allowed_hosts, ElementsAre("a.example", "b"));
  EXPECT_EQ(api.model_id, "name");
  EXPECT_EQ(api.max_connections, 5);
  EXPECT_EQ(api.max_header_bytes, 2048);
  EXPECT_EQ(api.max_unsent_bytes, 1 << 20);
  EXPECT_EQ(api.request_timeout, absl::Seconds(1.5));
  EXPECT_EQ(api.idle_timeout, absl::Seconds(2));
  EXPECT_EQ(api.write_timeout, absl::Seconds(3));
  for (const char* bad : {"--api-max-connections 0", "--api-max-header-bytes 1", "--api-request-timeout 0"}) {
    EXPECT_FALSE(ParseLine(std::string("--model m ") + bad).config.has_value()) << bad;
  }
}

TEST_F(ServerConfigTest, TheFlagsOfGrpcsConnections) {
  const ParsedConfig parsed = ParseLine(
      "--model m --max-concurrent-streams 4 --grpc-max-connections 5 --grpc-max-header-bytes 2KiB "
      "--grpc-handshake-timeout 1.5 --grpc-idle-timeout 2 --grpc-max-unsent-bytes 1MiB --grpc-write-timeout 3");
  ASSERT_TRUE(parsed.config.has_value()) << parsed.error_output;
  const GrpcConnectionLimits& grpc = parsed.config->grpc;
  EXPECT_EQ(grpc.max_concurrent_streams, 4);
  EXPECT_EQ(grpc.max_connections, 5);
  EXPECT_EQ(grpc.max_header_bytes, 2048);
  EXPECT_EQ(grpc.handshake_timeout, absl::Seconds(1.5));
  EXPECT_EQ(grpc.idle_timeout, absl::Seconds(2));
  EXPECT_EQ(grpc.max_unsent_bytes, 1 << 20);
  EXPECT_EQ(grpc.write_timeout, absl::Seconds(3));
  for (const char* bad : {"--grpc-max-connections 0", "--grpc-max-header-bytes 1", "--grpc-idle-timeout 0",
                          "--grpc-max-unsent-bytes 1", "--grpc-write-timeout 0"}) {
    EXPECT_FALSE(ParseLine(std::string("--model m ") + bad).config.has_value()) << bad;
  }
}

TEST_F(ServerConfigTest, OtherAddressesThanLoopbackNeedKeysOrAWord) {
  for (const char* flags : {"--grpc-address 0.0.0.0:1", "--grpc-address [::]:1", "--api-address 10.0.0.7:0",
                            "--grpc-address example.org:1", "--api-address 127.example.org:1"}) {
    const std::string line = std::string("--model m ") + flags;
    EXPECT_THAT(ParseLine(line).error_output, HasSubstr("without keys; allowed: a loopback address"))
        << flags;
    EXPECT_TRUE(ParseLine(line + " --allow-unauthenticated").config.has_value()) << flags;
    EXPECT_TRUE(ParseLine(line + " --api-keys /dev/null").config.has_value()) << flags;
  }
  for (const char* flags : {"--grpc-address unix:/tmp/socket", "--grpc-address localhost:1",
                            "--api-address 127.0.0.2:0", "--api-address none", "--http-address 0.0.0.0:1"}) {
    EXPECT_TRUE(ParseLine(std::string("--model m ") + flags).config.has_value()) << flags;
  }
}

TEST_F(ServerConfigTest, SwitchesAreTrueOrFalse) {
  EXPECT_FALSE(ParseLine("--model m --self-check=off").config->engine.self_check);
  EXPECT_TRUE(ParseLine("--model m --refine-idle=true").config->engine.refine_idle);
  EXPECT_EQ(ParseLine("--model m --refine-idle=maybe").error_output,
            "kvblend-server: --refine-idle is 'maybe'; allowed: true or false; see kvblend-server --help\n");
  const ScopedVariable keys("KVBLEND_ALLOW_UNAUTHENTICATED", "perhaps");
  EXPECT_THAT(ParseLine("--model m").error_output,
              HasSubstr("--allow-unauthenticated is 'perhaps'; allowed: true or false"));
}

TEST_F(ServerConfigTest, TheVariableOfASwitchIsThatOfItsFirstName) {
  {
    const ScopedVariable off("KVBLEND_SHARE_CORRECTION", "false");
    EXPECT_FALSE(ParseLine("--model m").config->engine.share_correction);
  }
  const ScopedVariable off("KVBLEND_NO_SHARE_CORRECTION", "true");
  const ParsedConfig parsed = ParseLine("--model m");
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(
      parsed.error_output,
      HasSubstr(
          "KVBLEND_NO_SHARE_CORRECTION is 'true'; allowed: KVBLEND_SHARE_CORRECTION=false in its place"));
}

TEST_F(ServerConfigTest, DefaultsAreTheStructs) {
  const ParsedConfig parsed = Parse({"--model", "m.gguf"});
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  const ServerConfig defaults;
  EXPECT_EQ(parsed.config->engine.model_path, "m.gguf");
  EXPECT_EQ(parsed.config->engine.device, "auto");
  EXPECT_EQ(parsed.config->engine.chunk_store_bytes, int64_t{4} << 30);
  EXPECT_EQ(parsed.config->engine.max_text_bytes, int64_t{8} << 20);
  EXPECT_TRUE(parsed.config->engine.self_check);
  EXPECT_EQ(parsed.config->grpc_address, "127.0.0.1:50051");
  EXPECT_EQ(parsed.config->http_address, "127.0.0.1:8090");
  EXPECT_EQ(parsed.config->api.address, "127.0.0.1:8000");
  EXPECT_EQ(parsed.config->max_message_bytes, int64_t{16} << 20);
  EXPECT_EQ(parsed.config->drain_timeout, defaults.drain_timeout);
  EXPECT_EQ(parsed.config->log_level, "info");
  EXPECT_EQ(parsed.config->engine.ratio.mode, RatioMode::kFixed);
  EXPECT_EQ(parsed.config->engine.ratio.ratio, 0.15);
  EXPECT_EQ(parsed.config->engine.load_pipeline_depth, 2);
}

TEST_F(ServerConfigTest, EveryFlagArrives) {
  const ParsedConfig parsed = ParseLine(R"(
      --model=m.gguf --device=cuda:3 --threads=3 --gemm=f32 --kv-dtype=f16 --max-context-tokens=1000
      --page-size=16 --chunk-store-bytes=2GiB --max-queued-requests=5 --max-chunks-per-request=6
      --max-text-bytes=7kb --no-self-check --grpc-address=[::1]:0 --http-address=0.0.0.0:1
      --max-message-bytes=1MiB --max-concurrent-streams=9 --drain-timeout=1.5 --port-file=p
      --log-level=debug --chunk-namespace-share=0.25 --chunk-namespace-shares=big=0.5,a=b=0.1
      --no-prefetch-queued --ratio=auto --ratio-min=0.2 --ratio-max=0.7 --min-recomputed-tokens=8
      --load-pipeline-depth=all)");
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  const ServerConfig& config = *parsed.config;
  EXPECT_EQ(config.engine.device, "cuda:3");
  EXPECT_EQ(config.engine.num_threads, 3);
  EXPECT_EQ(config.engine.gemm, "f32");
  EXPECT_EQ(config.engine.kv_dtype, "f16");
  EXPECT_EQ(config.engine.max_context_tokens, 1000);
  EXPECT_EQ(config.engine.page_size, 16);
  EXPECT_EQ(config.engine.chunk_store_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.engine.max_queued_requests, 5);
  EXPECT_EQ(config.engine.max_chunks_per_request, 6);
  EXPECT_EQ(config.engine.max_text_bytes, 7000);
  EXPECT_FALSE(config.engine.self_check);
  EXPECT_EQ(config.grpc_address, "[::1]:0");
  EXPECT_EQ(config.http_address, "0.0.0.0:1");
  EXPECT_EQ(config.max_message_bytes, 1 << 20);
  EXPECT_EQ(config.grpc.max_concurrent_streams, 9);
  EXPECT_EQ(config.drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(config.port_file, "p");
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.engine.namespace_quotas.default_share, 0.25);
  EXPECT_EQ(config.engine.namespace_quotas.named.size(), 2);
  EXPECT_EQ(config.engine.namespace_quotas.named.at("big"), 0.5);
  EXPECT_EQ(config.engine.namespace_quotas.named.at("a=b"), 0.1);
  EXPECT_FALSE(config.engine.prefetch_queued);
  EXPECT_EQ(config.engine.ratio.mode, RatioMode::kAuto);
  EXPECT_EQ(config.engine.ratio.min, 0.2);
  EXPECT_EQ(config.engine.ratio.max, 0.7);
  EXPECT_EQ(config.engine.ratio.min_tokens, 8);
  EXPECT_EQ(config.engine.load_pipeline_depth, 0);
}

TEST_F(ServerConfigTest, ARatioAndADepthAreNumbersToo) {
  const ParsedConfig parsed = Parse({"--model=m", "--ratio=0.05", "--load-pipeline-depth=7"});
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  EXPECT_EQ(parsed.config->engine.ratio.mode, RatioMode::kFixed);
  EXPECT_EQ(parsed.config->engine.ratio.ratio, 0.05);
  EXPECT_EQ(parsed.config->engine.load_pipeline_depth, 7);
  EXPECT_EQ(Parse({"--model=m", "--load-pipeline-depth=0"}).config->engine.load_pipeline_depth, 0);
  EXPECT_THAT(Parse({"--help"}).output, HasSubstr("0 or all: every layer")) << "and not none";
}

TEST_F(ServerConfigTest, RedisIsReachedAsItIsToldAndItsPasswordIsNoFlag) {
  EXPECT_TRUE(Parse({"--model", "m"}).config->engine.chunk_redis.nodes.empty());
  const ScopedVariable password("KVBLEND_CHUNK_REDIS_PASSWORD", "secret");
  const ParsedConfig parsed = ParseLine(R"(
      --model m --chunk-redis redis-0:7000,[::1]:7001 --chunk-redis-user kvblend --chunk-redis-tls
      --chunk-redis-tls-ca /dev/null --chunk-redis-tls-certificate /dev/null
      --chunk-redis-tls-key /dev/null --chunk-redis-tls-server-name redis --chunk-redis-ttl 60
      --chunk-redis-budget 0.02 --chunk-redis-max-value-bytes 1MiB --chunk-redis-connections 3
      --no-share-correction --share-correction-interval 5)");
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  const RedisOptions& redis = parsed.config->engine.chunk_redis;
  EXPECT_EQ(redis.nodes, "redis-0:7000,[::1]:7001");
  EXPECT_EQ(redis.user, "kvblend");
  EXPECT_EQ(redis.password, "secret");
  EXPECT_TRUE(redis.tls);
  EXPECT_EQ(redis.tls_ca, "/dev/null");
  EXPECT_EQ(redis.tls_certificate, "/dev/null");
  EXPECT_EQ(redis.tls_key, "/dev/null");
  EXPECT_EQ(redis.tls_server_name, "redis");
  EXPECT_EQ(redis.ttl_seconds, 60);
  EXPECT_EQ(redis.budget_seconds, 0.02);
  EXPECT_EQ(redis.max_value_bytes, int64_t{1} << 20);
  EXPECT_EQ(redis.connections_per_node, 3);
  EXPECT_FALSE(parsed.config->engine.share_correction);
  EXPECT_EQ(parsed.config->engine.share_correction_seconds, 5);
  EXPECT_TRUE(Parse({"--model", "m"}).config->engine.share_correction);
  EXPECT_THAT(ParseLine("--model m --chunk-redis-user u").error_output,
              HasSubstr("--chunk-redis-user requires --chunk-redis"));
  EXPECT_THAT(ParseLine("--model m --chunk-redis a:1 --chunk-redis-ttl -1").error_output,
              HasSubstr("chunk-redis-ttl is -1; allowed: 0 to 315360000"));
  EXPECT_THAT(Parse({"--help"}).output, HasSubstr("0 to 315360000"));
  for (const std::string bad :
       {"--chunk-redis no-port", "--chunk-redis a:1,", "--chunk-redis redis://u:s3cret@h:1",
        "--chunk-redis-password secret", "--chunk-redis-password-file /no/such/file",
        "--chunk-redis-tls-key /dev/null", "--chunk-redis-ttl -1", "--chunk-redis-budget 0",
        "--chunk-redis-connections 0", "--share-correction-interval 0"}) {
    const ParsedConfig refused = ParseLine("--model m " + bad);
    EXPECT_FALSE(refused.config) << bad;
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.error_output, HasSubstr(bad.substr(2, bad.find(' ') - 2)));  // without the dashes
    EXPECT_THAT(refused.error_output, Not(HasSubstr("s3cret")));
  }
  EXPECT_THAT(ParseLine("--model m redis://u:s3cret@h:1").error_output, HasSubstr("'...@h:1' belongs to no"));
}

TEST_F(ServerConfigTest, WhatIsWrongIsWantedAsTheLogIsWanted) {
  EXPECT_FALSE(ParseLine("--model m --threads x").json_log);
  EXPECT_TRUE(ParseLine("--model m --threads x --log-format json").json_log);
  const ScopedVariable variable("KVBLEND_LOG_FORMAT", "json");
  EXPECT_TRUE(ParseLine("--model m --threads x").json_log);
}

TEST_F(ServerConfigTest, RedisPasswordMayBeInAFile) {
  const test_support::TemporaryFolder folder;
  const std::string file = folder.path() + "/password";
  const auto parse = [](const std::string& path) {
    return ParseLine("--model m --chunk-redis a:1 --chunk-redis-password-file " + path);
  };
  std::ofstream(file) << "secret\r\nmore\n";
  const ParsedConfig parsed = parse(file);
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  EXPECT_EQ(parsed.config->engine.chunk_redis.password, "secret");
  {
    const ScopedVariable password("KVBLEND_CHUNK_REDIS_PASSWORD", "other");
    EXPECT_THAT(parse(file).error_output,
                HasSubstr("a password, in KVBLEND_CHUNK_REDIS_PASSWORD, and a password file"));
  }
  for (const std::string& bad : {std::string("/dev/null"), std::string("/dev/zero"), folder.path()}) {
    const ParsedConfig refused = parse(bad);
    EXPECT_EQ(refused.exit_code, 2) << bad;
    EXPECT_THAT(refused.error_output,
                AllOf(HasSubstr("--chunk-redis-password-file"),
                      HasSubstr(bad + (bad == "/dev/null" ? " has an empty first line" : ":"))));
  }
}

TEST_F(ServerConfigTest, SizesTakeUnits) {
  for (const auto& [text, bytes] : std::vector<std::pair<const char*, int64_t>>{{"65536", 65536},
                                                                                {"4GiB", int64_t{4} << 30},
                                                                                {"4gb", int64_t{4000000000}},
                                                                                {"512 MiB", 512 << 20}}) {
    const ParsedConfig parsed = Parse({"--model=m", "--chunk-store-bytes", text});
    ASSERT_TRUE(parsed.config) << parsed.error_output;
    EXPECT_EQ(parsed.config->engine.chunk_store_bytes, bytes) << text;
  }
}

TEST_F(ServerConfigTest, BadSettingsEndWithCodeTwoAndOneLine) {
  const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
      {{}, "--model"},
      {{"--model=m", "--no-such-flag"}, "'--no-such-flag' is no setting"},
      {{"m.gguf"}, "'m.gguf' belongs to no setting; allowed: settings as --NAME VALUE, such as --model FILE"},
      {{"--model=m", "--device=gpu"}, "device is 'gpu'"},
      {{"--model=m", "--device=cuda:-1"}, "allowed: auto, cpu, cuda, cuda:N (from 0), reference"},
      {{"--model=m", "--threads=-1"}, "threads is -1; allowed: 0 to 1024"},
      {{"--model=m", "--ratio=most"}, "ratio is 'most'; allowed: 0 to 1, or auto"},
      {{"--model=m", "--ratio=1.5"}, "ratio is 1.5; allowed: 0 to 1"},
      {{"--model=m", "--ratio-min=-1"}, "ratio-min is -1; allowed: 0 to 1"},
      {{"--model=m", "--ratio-min=0.6", "--ratio-max=0.4"},
       "ratio-min is 0.6; allowed: 0 to ratio-max (0.4)"},
      {{"--model=m", "--load-pipeline-depth=-1"}, "load-pipeline-depth is -1; allowed: 0 (all) to 65536"},
      {{"--model=m", "--load-pipeline-depth=deep"},
       ": --load-pipeline-depth is 'deep'; allowed: a whole number, 0 to 65536, or all;"},
      {{"--model=m", "--threads=many"}, ": --threads is 'many'; allowed: a whole number, 0 to 1024;"},
      {{"--model=m", "--threads=9999999999"},
       ": --threads is '9999999999'; allowed: a whole number, 0 to 1024;"},
      {{"--model=m", "--itl-target=x"}, ": --itl-target is 'x'; allowed: a number, 0 to 60;"},
      {{"--model=m", "--ratio-min=x"}, ": --ratio-min is 'x'; allowed: a number, 0 to 1;"},
      {{"--model=m", "--min-recomputed-tokens=x"},
       ": --min-recomputed-tokens is 'x'; allowed: a whole number, from 0;"},
      {{"--model=m", "--api-keys=nowhere"}, ": --api-keys is 'nowhere'; allowed: a file that is there;"},
      {{"--model=m", "--api-max-connections=0"},
       ": --api-max-connections is '0'; allowed: a whole number, 1 to 1000000;"},
      {{"--model=m", "--grpc-max-unsent-bytes=1"},
       ": --grpc-max-unsent-bytes is '1'; allowed: a whole number, 1024 to 1099511627776;"},
      {{"--model=m", "--trace-dir=d", "--trace-sample=2"},
       ": --trace-sample is '2'; allowed: a number, 0 to 1;"},
      {{"--model=m", "--chunk-store-bytes=-1"}, "chunk-store-bytes is -1; allowed: 0 to "},
      {{"--model=m", "--chunk-store-bytes=4parsec"},
       ": --chunk-store-bytes is '4parsec'; allowed: bytes, as 65536, 500MB or 4GiB, below 2^63;"},
      {{"--model=m", "--chunk-store-bytes=15EiB"}, ": --chunk-store-bytes is '15EiB'; allowed: bytes"},
      {{"--model=m", "--max-message-bytes=4GiB"},
       ": --max-message-bytes is '4294967296'; allowed: a whole number, 1024 to 2147483647;"},
      {{"--model=m", "--drain-timeout=-1"}, ": --drain-timeout is '-1'; allowed: a number, 0 to 86400;"},
      {{"--model=m", "--log-level=loud"},
       ": --log-level is 'loud'; allowed: trace, debug, info, warn, error;"},
      {{"--model=m", "--chunk-namespace-share=1.5"}, "chunk-namespace-share is 1.5; allowed: above 0 to 1"},
      {{"--model=m", "--chunk-namespace-share=0"}, "chunk-namespace-share is 0; allowed: above 0 to 1"},
      {{"--model=m", "--chunk-namespace-shares=big"},
       ": --chunk-namespace-shares has 'big'; allowed: NAME=SHARE, with a number as SHARE;"},
      {{"--model=m", "--chunk-namespace-shares=a=0.1,big=0"},
       "namespace 'big' may fill is 0; allowed: above 0, at most 1"},
      {{"--model=m", "--chunk-namespace-shares=a=0.5,b=0.1,a=0.001"},
       ": --chunk-namespace-shares has 'a' twice, with 0.5 and 0.001; allowed: every namespace once;"},
      {{"--model=m", "--api-allowed-hosts=rag.example.com,http://foo"},
       ": --api-allowed-hosts is 'http://foo'; allowed: names of hosts, such as rag.example.com, or * for any;"},
      {{"--model=m", "--api-allowed-hosts=*.wild.example"},
       ": --api-allowed-hosts is '*.wild.example'; allowed: names of hosts"},
      {{"--model=m", "--chunk-namespace-shares=big=nan"}, "namespace 'big' may fill is nan"},
      {{"--model=m", "--tls-key=/dev/null"}, "--tls-certificate"},
      {{"--model=m", "--tls-client-ca=/dev/null"}, "--tls-certificate"},
      {{"--model=m", "--config=/nonexistent/file"}, "/nonexistent/file"}};
  for (const auto& [arguments, name] : cases) {
    const ParsedConfig parsed = Parse(arguments);
    EXPECT_FALSE(parsed.config) << name;
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_THAT(parsed.output, IsEmpty());
    EXPECT_THAT(parsed.error_output, AllOf(HasSubstr("kvblend-server: "), HasSubstr(name)));
    EXPECT_EQ(parsed.error_output.find('\n'), parsed.error_output.size() - 1) << parsed.error_output;
  }
}

TEST_F(ServerConfigTest, HelpAndVersionGoToStdout) {
  const ParsedConfig help = Parse({"--help"});
  EXPECT_FALSE(help.config);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.error_output, IsEmpty());
  EXPECT_THAT(help.output, AllOf(HasSubstr("Examples:"), HasSubstr("Model and computation"),
                                 HasSubstr("KVBLEND_CHUNK_STORE_BYTES"), HasSubstr("Exit codes")));
  const ParsedConfig version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.output, "kvblend-server 1.2.3\n");
}

TEST_F(ServerConfigTest, EverySettingOfTheEngineIsAFlagAndAVariable) {
  const std::string help = Parse({"--help"}).output;
  for (const EngineOption& option : EngineOptionTable()) {
    std::string variable = "(Env:KVBLEND_";
    for (const char c : std::string(option.name))
      variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    EXPECT_THAT(help, AllOf(HasSubstr("--" + std::string(option.name)), HasSubstr(variable + ")")));
  }
  EXPECT_THAT(help, AllOf(HasSubstr("SIZE=4GiB"), HasSubstr("SIZE=32GiB"), HasSubstr("0 to 1024")));
}

TEST_F(ServerConfigTest, FlagsWinOverTheFileAndTheFileOverVariables) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/server.conf";
  std::ofstream(path) << "model = \"file.gguf\"\nthreads = 1\npage-size = 8\ngemm = \"bf16\"\n"
                      << "chunk-store-bytes = \"1GiB\"\nself-check = false\n";
  const ScopedVariable threads("KVBLEND_THREADS", "2");
  const ScopedVariable page_size("KVBLEND_PAGE_SIZE", "32");
  const ScopedVariable log_level("KVBLEND_LOG_LEVEL", "warn");
  const ParsedConfig parsed = Parse({"--config", path.c_str(), "--page-size=128"});
  ASSERT_TRUE(parsed.config) << parsed.error_output;
  EXPECT_EQ(parsed.config->engine.model_path, "file.gguf");
  EXPECT_EQ(parsed.config->engine.gemm, "bf16");
  EXPECT_EQ(parsed.config->engine.chunk_store_bytes, int64_t{1} << 30);
  EXPECT_FALSE(parsed.config->engine.self_check);
  EXPECT_EQ(parsed.config->engine.page_size, 128);
  EXPECT_EQ(parsed.config->log_level, "warn");
  EXPECT_EQ(parsed.config->engine.num_threads, 1);
}

TEST_F(ServerConfigTest, AVariableNamesTheFile) {
  const std::string path = test_support::TemporaryPath("named.conf");
  std::ofstream(path) << "model=from-file.gguf\nratio=0.3\n";
  {
    const ScopedVariable config("KVBLEND_CONFIG", path.c_str());
    const ParsedConfig parsed = Parse({});
    ASSERT_TRUE(parsed.config.has_value()) << parsed.error_output;
    EXPECT_EQ(parsed.config->engine.model_path, "from-file.gguf");
    EXPECT_EQ(ParseLine("--model flag.gguf").config->engine.model_path, "flag.gguf");
    const std::string other = test_support::TemporaryPath("other.conf");
    std::ofstream(other) << "model=other.gguf\n";
    EXPECT_EQ(ParseLine("--config " + other).config->engine.model_path, "other.gguf");
    std::ofstream(path) << "ratio=7\n";
    EXPECT_EQ(ParseLine("--model m.gguf").exit_code, 2);
  }
  const ScopedVariable missing("KVBLEND_CONFIG", "/nowhere/server.conf");
  const ParsedConfig parsed = ParseLine("--model m.gguf");
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.error_output, HasSubstr("/nowhere/server.conf"));
}

TEST_F(ServerConfigTest, EveryLineOfTheFileIsASetting) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/server.conf";
  const auto parse = [&](const std::string& lines) {
    std::ofstream(path) << lines;
    return Parse({"--model=m", "--config", path.c_str()});
  };
  EXPECT_TRUE(parse("# a remark\n;\n #\n \n\nthreads=1\nno-self-check=true\n").config);
  const ParsedConfig list = parse("api-allowed-hosts = [\"a\",  # two\n\"b\"\n]\nthreads = 3\n");
  ASSERT_TRUE(list.config) << list.error_output;
  EXPECT_EQ(list.config->engine.num_threads, 3);
  EXPECT_TRUE(parse("device = cpu # or another\nmap-weights = 'two words'\n").config);
  const std::pair<const char*, const char*> cases[] = {
      {"threads=1\napi-key=/dev/null\n", "'api-key' is no setting"},
      {"api_keys=/dev/null\n", "'api_keys' is no setting"},
      {"no-such-thing\n", "'no-such-thing' is no setting"},
      {"server.threads=1\n", "'server.threads' is no setting"},
      {"[server]\nthreads=1\n", "'[server]' is no setting; allowed: lines without sections"},
      {"threads=1\n [default] \n", "'[default]' is no setting; allowed: lines without sections"},
      {"[]\nthreads=1\n", "'[]' is no setting; allowed: lines without sections"},
      {"api-allowed-hosts=[a,\n[b]\n[c]\n", "'[c]' is no setting; allowed: lines without sections"},
      {"=1\n", "'=1' is no setting"},
      {"= 1\n", "'' is no setting"},
      {"x\r\n", "'x' is no setting"},
      {"version=true\n", "'version' is no setting"},
      {"threads=1\n# a remark\nchunk-store-bytes = 500 MB # of 2\n",
       "line 3: chunk-store-bytes is '500 MB'; allowed: one value, in quotes where it has blanks"},
      {"threads=1\npage-size=8\nthreads=2\n", "'threads' is there twice"}};
  for (const auto& [lines, message] : cases) {
    const ParsedConfig parsed = parse(lines);
    EXPECT_FALSE(parsed.config) << lines;
    EXPECT_EQ(parsed.exit_code, 2) << lines;
    EXPECT_EQ(parsed.error_output,
              "kvblend-server: " + path + ": " + message + "; see kvblend-server --help\n");
  }
}

TEST_F(ServerConfigTest, AFileWithoutEndIsNoFileOfSettings) {
  const ParsedConfig parsed = Parse({"--model=m", "--config=/dev/zero"});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.error_output, HasSubstr("/dev/zero: has more than 1048576 bytes"));
}

TEST_F(ServerConfigTest, SettingsMayComeThroughAPipeIfSomebodyWritesThem) {
  const test_support::TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto parse_with = [&](const std::string& lines) {
    std::thread writer([&] { std::ofstream(pipe) << lines; });
    ParsedConfig parsed = Parse({"--model=m", "--config", pipe.c_str()});
    writer.join();
    return parsed;
  };
  const ParsedConfig good = parse_with("threads=3\n");
  ASSERT_TRUE(good.config) << good.error_output;
  EXPECT_EQ(good.config->engine.num_threads, 3);
  EXPECT_THAT(parse_with("api_keys=/dev/null\n").error_output,
              HasSubstr(pipe + ": 'api_keys' is no setting"));
  const ParsedConfig alone = Parse({"--model=m", "--config", pipe.c_str()});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.error_output,
              HasSubstr("--config: cannot read " + pipe + ": it is a pipe that nobody writes to"));
}

TEST_F(ServerConfigTest, BadVariablesAreNamed) {
  const ScopedVariable threads("KVBLEND_THREADS", "lots");
  const ParsedConfig parsed = Parse({"--model=m"});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.error_output, HasSubstr("threads"));
}

}  // namespace
}  // namespace kvblend::server
