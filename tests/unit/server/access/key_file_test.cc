#include "server/access/key_file.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/server/access/key_lines.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

TEST(KeyFileTest, HashesAreSha256) {
  // The digest of FIPS 180-2's first example.
  EXPECT_THAT(LineOf("abc", ""),
              HasSubstr("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

TEST(KeyFileTest, AMadeKeyIsOneThatTheFileTakes) {
  const Tenant tenant = {.name = "acme",
                         .chunk_namespace = "space",
                         .admin = true,
                         .requests_per_minute = 1,
                         .computed_tokens_per_minute = 2,
                         .concurrent_requests = 3,
                         .store_bytes = 4,
                         .priority = Priority::kLow,
                         .max_priority = Priority::kHigh,
                         .read = {"corpus", "more"}};
  const auto made = MakeKey(tenant), another = MakeKey(tenant);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NE(made->key, another->key);
  EXPECT_EQ(made->key.size(), 4 + 43);
  const auto entries = ParseKeyFile(absl::StrCat("# keys\n\n", made->line, "\r\n", another->line));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2);
  EXPECT_EQ((*entries)[0].hash, HashKey(made->key));
  EXPECT_EQ((*entries)[0].tenant, tenant);
  EXPECT_FALSE(MakeKey({}).ok());
  Tenant misnamed = tenant;
  misnamed.name = "a\xFF";
  EXPECT_EQ(MakeKey(misnamed).status(),
            absl::InvalidArgumentError("tenant is not valid UTF-8 at byte 1 of 2; allowed: UTF-8 text"));
}

TEST(KeyFileTest, WhatIsWrongIsNamedWithItsLine) {
  const std::string good = LineOf("a", R"("tenant": "t")");
  const std::pair<std::string, std::string> cases[] = {
      {"", "there is no key"},
      {"nonsense", "line 1: the body is no JSON"},
      {good + "{}", "line 2: tenant has 0 bytes"},
      {good + good, "line 2: the key of line 1 again"},
      {good + LineOf("b", R"("tenant": "t", "admin": true)"),
       "line 2: tenant 't' has other settings than in line 1"},
      {good + LineOf("b", R"("tenant": "u", "namespace": "t")"),
       "line 2: namespace 't' is that of tenant 't'"},
      {LineOf("b", R"("tenant": "u", "quota": 1)"), "line 1: quota is not a field"},
      {LineOf("b", R"("tenant": "u", "requests_per_minute": -1)"),
       "line 1: requests_per_minute is -1; allowed"},
      {LineOf("b", R"("tenant": "u", "store_bytes": "1G")"), "line 1: store_bytes is "},
      {LineOf("b", R"("tenant": "u", "priority": "urgent")"),
       "line 1: priority is 'urgent'; allowed: normal, high, low"},
      {LineOf("b", R"("tenant": "u", "max_priority": "low")"),
       "line 1: max_priority is 'low'; allowed: not below priority, 'normal'"},
      {LineOf("b", R"("tenant": "u", "read": "corpus")"), "line 1: read is no list of namespaces"},
      {LineOf("b", R"("tenant": "u", "read": [""])"), "line 1: read has 0 bytes"},
      {R"({"tenant": "u", "key_sha256": "abcd"})", "line 1: key_sha256 is no hash"},
      {LineOf("b", absl::StrCat(R"("tenant": ")", std::string(129, 'x'), "\"")),
       "line 1: tenant has 129 bytes"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(std::string(ParseKeyFile(text).status().message()), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace kvblend::server
