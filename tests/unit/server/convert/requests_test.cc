#include "server/convert/requests.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_text.h"
#include "tests/unit/server/describe_request.h"

namespace kvblend::server {
namespace {

using ::kvblend::test_support::FromText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest Minimal() {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_question("why?");
  return request;
}

// The documented defaults, which clients rely on, against the engine's.
TEST(ConvertRequestsTest, EnginesDefaultsAreTheDocumentedOnes) {
  const GenerateRequest defaults;
  EXPECT_FALSE(defaults.blend.ratio.has_value());  // the engine's
  EXPECT_EQ(RatioOptions().mode, RatioMode::kFixed);
  EXPECT_EQ(RatioOptions().ratio, 0.15);
  EXPECT_EQ(RatioOptions().min, 0.15);
  EXPECT_EQ(RatioOptions().max, 0.5);
  EXPECT_EQ(defaults.blend.hkvd_layer, 1);
  EXPECT_EQ(defaults.blend.link_tokens, 32);
  EXPECT_TRUE(defaults.blend.store_misses);
  EXPECT_TRUE(defaults.blend.correction);
  EXPECT_TRUE(defaults.blend.spread_deviation);
  EXPECT_TRUE(defaults.blend.share_prefix);
  EXPECT_EQ(defaults.blend.policy, Policy::kQuery);
  EXPECT_EQ(defaults.blend.reuse, Reuse::kChunks);
  EXPECT_EQ(defaults.blend.anchoring, Anchoring::kAnchored);
  EXPECT_EQ(defaults.blend.hkvd_source, DeviationSource::kValue);
  EXPECT_EQ(defaults.sampling.max_tokens, 256);
  EXPECT_EQ(defaults.sampling.top_p, 1.0);
  EXPECT_EQ(defaults.sampling.repetition_penalty, 1.0);
  EXPECT_EQ(defaults.sampling.top_logprobs, -1);
}

// What arrives is compared as a whole: the fields in the order of engine/api/request.h.
TEST(ConvertRequestsTest, EveryFieldOfAGenerateRequestArrives) {
  // Zero values given on purpose are not defaults.
  const auto converted = FromProto(FromText<v1::GenerateRequest>(R"(
      namespace: "tenant"
      prompt { system_text: "system"  lead_in: "lead"  chunks: [ "one", "two" ]  question: "why?"
               split: PROMPT_SPLIT_PASSAGES
               history { role: ROLE_USER  text: "hello"  lead_in: "l"  chunks: [ "e", "f" ] }  history { role: ROLE_ASSISTANT  text: "hi" } }
      blend { reuse: REUSE_PREFIX  anchoring: ANCHORING_ISOLATED  policy: POLICY_HKVD
              ratio: 0  ratio_mode: RATIO_MODE_AUTO  ratio_min: 0  ratio_max: 0.75
              query_layers: 3  hkvd_layer: 0  hkvd_source: DEVIATION_SOURCE_KEY
              link_tokens: 0  random_seed: 7  store_misses: false  correction: false  explain: true
              spread_deviation: false  share_prefix: false  read_namespaces: [ "c", "d" ] }
      priority: PRIORITY_HIGH
      sampling { max_tokens: 0  temperature: 0.5  top_k: 40  top_p: 0  min_p: 0.1  repetition_penalty: 0
                 seed: 9223372036854775808  stop: "\n"  ignore_eos: true  top_logprobs: 0
                 presence_penalty: -1  frequency_penalty: 0.5  logit_bias { key: 7  value: -3 }
                 attribution: true })"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(Describe::Text(*converted),
            "{{tenant;;infinite-future;high;};"
            "{system;lead;[one,two,];why?;[{user;hello;l;[e,f,];},{assistant;hi;;[];},];passages;};"
            "{prefix;isolated;hkvd;auto;0;0;0.75;3;0;key;0;7;0;0;0;1;0;[c,d,];};"
            "{0;0.5;40;0;0.1;0;-1;0.5;[7:-3,];9223372036854775808;[\n,];1;0;1;};}");
}

TEST(ConvertRequestsTest, UnknownEnumNumbersAreRefusedByFieldValueAndRange) {
  const auto refusal = [](auto change) {
    v1::GenerateRequest request = Minimal();
    change(&request);
    const auto converted = FromProto(std::move(request));
    EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(converted.status().message());
  };
  EXPECT_EQ(refusal([](auto* r) { r->mutable_blend()->set_reuse(static_cast<v1::Reuse>(17)); }),
            "blend.reuse is 17; allowed: REUSE_UNSPECIFIED (0), REUSE_CHUNKS (1), REUSE_PREFIX (2), "
            "REUSE_NOTHING (3)");
  EXPECT_THAT(refusal([](auto* r) { r->mutable_blend()->set_policy(static_cast<v1::Policy>(-1)); }),
              HasSubstr("blend.policy is -1; allowed: "));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_blend()->set_anchoring(static_cast<v1::Anchoring>(3)); }),
              HasSubstr("blend.anchoring is 3; allowed: "));
  EXPECT_THAT(
      refusal([](auto* r) { r->mutable_blend()->set_hkvd_source(static_cast<v1::DeviationSource>(3)); }),
      HasSubstr("blend.hkvd_source is 3; allowed: "));
  EXPECT_THAT(refusal([](auto* r) {
                r->mutable_prompt()->add_history();
                r->mutable_prompt()->add_history()->set_role(static_cast<v1::Role>(9));
              }),
              HasSubstr("prompt.history[1].role is 9; allowed: "));
  EXPECT_THAT(refusal([](auto* r) { r->clear_prompt(); }), HasSubstr("prompt is not set"));
}

TEST(ConvertRequestsTest, ScoreTakesTextOrTokenIds) {
  const auto by_text = FromProto(FromText<v1::ScoreRequest>(R"(
      namespace: "tenant"  prompt { question: "why?" }  blend { ratio: 0.25 }  continuation_text: "because")"));
  ASSERT_TRUE(by_text.ok()) << by_text.status();
  EXPECT_EQ(by_text->caller.tenant_namespace, "tenant");
  EXPECT_EQ(by_text->prompt.question, "why?");
  EXPECT_EQ(by_text->blend.ratio, 0.25);
  EXPECT_EQ(by_text->continuation, "because");
  EXPECT_TRUE(by_text->continuation_token_ids.empty());
  EXPECT_FALSE(by_text->return_distributions);

  // The engine knows the vocabulary, not the edge.
  const auto by_ids = FromProto(FromText<v1::ScoreRequest>(R"(
      prompt { question: "why?" }  continuation_token_ids { ids: [ 5, -1 ] }  return_distributions: true)"));
  ASSERT_TRUE(by_ids.ok()) << by_ids.status();
  EXPECT_EQ(by_ids->continuation, "");
  EXPECT_THAT(by_ids->continuation_token_ids, ElementsAre(5, -1));
  EXPECT_TRUE(by_ids->return_distributions);
}

TEST(ConvertRequestsTest, ScoreWithoutAContinuationIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(prompt { question: "why?" })", "continuation is not set"},
      {R"(prompt { question: "why?" }  continuation_text: "")", "continuation_text is empty"},
      {R"(prompt { question: "why?" }  continuation_token_ids {})", "continuation_token_ids.ids has 0 ids"},
      {R"(continuation_text: "because")", "prompt is not set"}};
  for (const auto& [request, message] : cases) {
    const auto converted = FromProto(FromText<v1::ScoreRequest>(request));
    EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(converted.status().message()), HasSubstr(message));
  }
}

template <typename Request>
void ExpectUnknownAnchoringIsRefused() {
  Request unknown;
  unknown.set_anchoring(static_cast<v1::Anchoring>(8));
  EXPECT_THAT(std::string(FromProto(std::move(unknown)).status().message()),
              HasSubstr("anchoring is 8; allowed: "));
}

TEST(ConvertRequestsTest, EveryFieldOfAPutRequestArrives) {
  const auto converted = FromProto(FromText<v1::PutChunksRequest>(R"(
      namespace: "tenant"  system_text: "system"  lead_in: "lead"  anchoring: ANCHORING_ISOLATED
      chunks: "one"  label: "corpus"  chunk_labels: "one's"  pin: true  priority: PRIORITY_LOW)"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(Describe::Text(*converted),
            "{{tenant;;infinite-future;low;};system;lead;isolated;[one,];corpus;[one's,];1;}");
  ExpectUnknownAnchoringIsRefused<v1::PutChunksRequest>();
}

TEST(ConvertRequestsTest, EveryFieldOfASplitRequestArrives) {
  const auto converted = FromProto(FromText<v1::SplitDocumentRequest>(R"(
      namespace: "tenant"  system_text: "system"  lead_in: "lead"  anchoring: ANCHORING_ISOLATED
      text: "document"  goes_on: true  chunk_tokens: 99  overlap_tokens: 0)"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(Describe::Text(*converted),
            "{{tenant;;infinite-future;normal;};system;lead;isolated;document;1;99;0;}");
  const auto defaults = FromProto(v1::SplitDocumentRequest());
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->chunk_tokens, 512);
  EXPECT_EQ(defaults->overlap_tokens, std::nullopt) << "which follows chunk_tokens";
  ExpectUnknownAnchoringIsRefused<v1::SplitDocumentRequest>();
}

TEST(ConvertRequestsTest, EveryFieldOfAPrefetchRequestArrives) {
  const auto converted = FromProto(FromText<v1::PrefetchChunksRequest>(R"(
      namespace: "tenant"  system_text: "system"  lead_in: "lead"  anchoring: ANCHORING_ISOLATED  chunks: "one"
      read_namespaces: "c")"));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(Describe::Text(*converted),
            "{{tenant;;infinite-future;normal;};system;lead;isolated;[one,];[c,];}");
}

TEST(ConvertRequestsTest, KeysAreCountedAndChecked) {
  v1::StatChunksRequest request;
  EXPECT_EQ(ParseKeys(request.keys()).status(),
            absl::InvalidArgumentError("keys has 0 keys; allowed: 1 to 1000"));
  for (int i = 0; i < 1000; ++i) request.add_keys(std::string(64, 'A'));
  const auto keys = ParseKeys(request.keys());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->size(), 1000u);
  EXPECT_EQ(keys->back().ToHex(), std::string(64, 'a'));
  request.add_keys(std::string(64, 'A'));
  EXPECT_FALSE(ParseKeys(request.keys()).ok());
  request.mutable_keys()->DeleteSubrange(2, 999);
  request.set_keys(1, "zz");
  EXPECT_THAT(std::string(ParseKeys(request.keys()).status().message()), HasSubstr("keys[1]: "));
  request.set_keys(1, std::string(63, 'a') + "\n");
  EXPECT_EQ(ParseKeys(request.keys()).status(),
            absl::InvalidArgumentError(
                "keys[1]: key is not hexadecimal at character 63; a key is 64 hexadecimal digits"))
      << "which quotes nothing of it, as it will be in the log";
}

}  // namespace
}  // namespace kvblend::server
