#include "server/cli/request_json.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RequestJsonTest, ReadsEveryField) {
  const auto request = ParseGenerateRequest(R"({
      "namespace": "tenant",
      "prompt": {"system_text": "S", "lead_in": "L", "chunks": ["a", "b"], "question": "Q",
                 "history": [{"role": "user", "text": "u"}, {"role": "ROLE_ASSISTANT", "text": "v"}]},
      "blend": {"reuse": "prefix", "anchoring": "ANCHORING_ISOLATED", "policy": "hkvd", "ratio": 0.25,
                "query_layers": 3, "hkvd_layer": 2, "hkvd_source": "key", "link_tokens": 9,
                "random_seed": 18446744073709551615, "store_misses": false,
                "ratio_mode": "RATIO_MODE_AUTO", "ratio_min": 0.1, "ratio_max": 0.6},
      "sampling": {"max_tokens": 5, "temperature": 1, "top_k": 40, "top_p": 0.9, "min_p": 0.1,
                   "repetition_penalty": 1.5, "seed": 11, "stop": ["x", "yy"], "top_logprobs": 2, "ignore_eos": true}})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->caller.tenant_namespace, "tenant");
  EXPECT_EQ(request->prompt.system_text, "S");
  EXPECT_EQ(request->prompt.lead_in, "L");
  EXPECT_THAT(request->prompt.chunks, ElementsAre("a", "b"));
  EXPECT_EQ(request->prompt.question, "Q");
  ASSERT_EQ(request->prompt.history.size(), 2u);
  EXPECT_EQ(request->prompt.history[0].role, Role::kUser);
  EXPECT_EQ(request->prompt.history[1].role, Role::kAssistant);
  EXPECT_EQ(request->prompt.history[1].text, "v");
  EXPECT_EQ(request->blend.reuse, Reuse::kPrefix);
  EXPECT_EQ(request->blend.anchoring, Anchoring::kIsolated);
  EXPECT_EQ(request->blend.policy, Policy::kHkvd);
  EXPECT_EQ(request->blend.ratio, 0.25);
  EXPECT_EQ(request->blend.ratio_mode, RatioMode::kAuto);
  EXPECT_EQ(request->blend.ratio_min, 0.1);
  EXPECT_EQ(request->blend.ratio_max, 0.6);
  EXPECT_EQ(request->blend.query_layers, 3);
  EXPECT_EQ(request->blend.hkvd_layer, 2);
  EXPECT_EQ(request->blend.hkvd_source, DeviationSource::kKey);
  EXPECT_EQ(request->blend.link_tokens, 9);
  EXPECT_EQ(request->blend.random_seed, std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(request->blend.store_misses);
  EXPECT_EQ(request->sampling.max_tokens, 5);
  EXPECT_DOUBLE_EQ(request->sampling.temperature, 1);
  EXPECT_EQ(request->sampling.top_k, 40);
  EXPECT_DOUBLE_EQ(request->sampling.top_p, 0.9);
  EXPECT_DOUBLE_EQ(request->sampling.min_p, 0.1);
  EXPECT_DOUBLE_EQ(request->sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request->sampling.seed, 11u);
  EXPECT_THAT(request->sampling.stop, ElementsAre("x", "yy"));
  EXPECT_EQ(request->sampling.top_logprobs, 2);
  EXPECT_TRUE(request->sampling.ignore_eos);
}

TEST(RequestJsonTest, MissingFieldsKeepTheirDefaults) {
  const auto request = ParseGenerateRequest(R"({"prompt": {"question": "Q"}})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->blend.ratio.has_value());  // the engine's
  EXPECT_EQ(request->sampling.max_tokens, 256);
  EXPECT_TRUE(request->blend.store_misses);
}

TEST(RequestJsonTest, ErrorsNameTheField) {
  const auto message = [](const char* json) {
    const auto request = ParseGenerateRequest(json);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(request.status().message());
  };
  EXPECT_THAT(message("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(message(R"({"promt": {}})"), HasSubstr("unknown field promt"));
  EXPECT_THAT(message(R"({"blend": {"ration": 1}})"), HasSubstr("unknown field blend.ration"));
  EXPECT_THAT(message(R"({"blend": {"ratio": "1"}})"), HasSubstr("blend.ratio must be a number, not string"));
  EXPECT_THAT(message(R"({"blend": {"policy": "best"}})"), HasSubstr("blend.policy"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 1.5}})"), HasSubstr("sampling.max_tokens"));
  EXPECT_THAT(message(R"({"sampling": {"max_tokens": 3000000000}})"),
              HasSubstr("allowed: -2147483648 to 2147483647"));
  EXPECT_THAT(message(R"({"sampling": {"seed": -1}})"), HasSubstr("sampling.seed"));
  EXPECT_THAT(message(R"({"sampling": {"ignore_eos": 1}})"), HasSubstr("true or false"));
  EXPECT_THAT(message(R"({"prompt": {"chunks": ["a", 1]}})"), HasSubstr("prompt.chunks[1]"));
  EXPECT_THAT(message(R"({"prompt": {"history": [{"role": "boss"}]}})"), HasSubstr("prompt.history[0].role"));
}

}  // namespace
}  // namespace kvblend::server::cli
