#include "server/cli/message_json.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblend/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MessageJsonTest, ReadsEveryKindOfField) {
  v1::GenerateRequest request;
  const absl::Status status = ParseJson(R"({
      "namespace": "tenant",
      "prompt": {"system_text": "S", "leadIn": "L", "chunks": ["a", "b"], "question": "Q",
                 "history": [{"role": "user", "text": "u"}, {"role": "ROLE_ASSISTANT", "text": "v"}]},
      "blend": {"reuse": "prefix", "anchoring": "ANCHORING_ISOLATED", "policy": "hkvd", "ratio": 0.25,
                "random_seed": 18446744073709551615, "store_misses": false, "ratio_mode": "auto"},
      "sampling": {"max_tokens": 5, "temperature": 1, "stop": ["x", "yy"], "ignore_eos": true}})",
                                        request);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(request.namespace_(), "tenant");
  EXPECT_EQ(request.prompt().lead_in(), "L");
  EXPECT_THAT(request.prompt().chunks(), ElementsAre("a", "b"));
  ASSERT_EQ(request.prompt().history_size(), 2);
  EXPECT_EQ(request.prompt().history(0).role(), v1::ROLE_USER);
  EXPECT_EQ(request.prompt().history(1).role(), v1::ROLE_ASSISTANT);
  EXPECT_EQ(request.prompt().history(1).text(), "v");
  EXPECT_EQ(request.blend().reuse(), v1::REUSE_PREFIX);
  EXPECT_EQ(request.blend().anchoring(), v1::ANCHORING_ISOLATED);
  EXPECT_EQ(request.blend().policy(), v1::POLICY_HKVD);
  EXPECT_EQ(request.blend().ratio(), 0.25);
  EXPECT_EQ(request.blend().ratio_mode(), v1::RATIO_MODE_AUTO);
  EXPECT_EQ(request.blend().random_seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(request.blend().has_store_misses());
  EXPECT_FALSE(request.blend().store_misses());
  EXPECT_EQ(request.sampling().max_tokens(), 5);
  EXPECT_DOUBLE_EQ(request.sampling().temperature(), 1);
  EXPECT_THAT(request.sampling().stop(), ElementsAre("x", "yy"));
  EXPECT_TRUE(request.sampling().ignore_eos());
  EXPECT_FALSE(request.sampling().has_top_p());
}

TEST(MessageJsonTest, ErrorsNameTheField) {
  const auto message = [](const char* json) {
    v1::GenerateRequest request;
    const absl::Status status = ParseJson(json, request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(status.message());
  };
  EXPECT_THAT(message("{"), HasSubstr("not valid JSON"));
  EXPECT_NE(message("[]"), "");
  EXPECT_THAT(message(R"({"promt": {}})"), HasSubstr("promt"));
  EXPECT_THAT(message(R"({"blend": {"ration": 1}})"), HasSubstr("ration"));
  EXPECT_THAT(message(R"({"blend": {"ratio": "much"}})"), HasSubstr("ratio"));
  EXPECT_THAT(message(R"({"blend": {"policy": "best"}})"), HasSubstr("best"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 1.5}})"), HasSubstr("max_tokens"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 3000000000}})"), HasSubstr("max_tokens"));
  EXPECT_THAT(message(R"({"sampling": {"seed": -1}})"), HasSubstr("seed"));
  EXPECT_THAT(message(R"({"prompt": {"chunks": ["a", {}]}})"), HasSubstr("chunks"));
  EXPECT_THAT(message(R"({"prompt": {"history": [{"role": "boss"}]}})"), HasSubstr("boss"));
}

TEST(MessageJsonTest, WritesEveryFieldUnderItsOwnName) {
  v1::ChunkReport report;
  report.set_source(v1::CHUNK_SOURCE_OTHER_ANCHOR);
  report.set_key("k");
  EXPECT_EQ(nlohmann::json::parse(ToJson(report)), nlohmann::json({{"index", 0},
                                                                   {"source", "CHUNK_SOURCE_OTHER_ANCHOR"},
                                                                   {"tier", "TIER_UNSPECIFIED"},
                                                                   {"num_tokens", 0},
                                                                   {"recomputed_tokens", 0},
                                                                   {"key", "k"}}));
}

}  // namespace
}  // namespace kvblend::server::cli
