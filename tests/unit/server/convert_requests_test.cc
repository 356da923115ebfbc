#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/convert/requests.h"
#include "tests/unit/server/describe_request.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateRequest Minimal() {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_question("why?");
  return request;
}

TEST(ConvertRequestsTest, UnsetFieldsHaveTheEnginesDefaults) {
  const auto converted = FromProto(Minimal());
  ASSERT_TRUE(converted.ok()) << converted.status();
  GenerateRequest defaults;
  defaults.prompt.question = "why?";
  EXPECT_EQ(Describe::Text(*converted), Describe::Text(defaults));
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
  EXPECT_EQ(defaults.blend.policy, Policy::kQuery);
  EXPECT_EQ(defaults.blend.reuse, Reuse::kChunks);
  EXPECT_EQ(defaults.blend.anchoring, Anchoring::kAnchored);
  EXPECT_EQ(defaults.blend.hkvd_source, DeviationSource::kValue);
  EXPECT_EQ(defaults.sampling.max_tokens, 256);
  EXPECT_EQ(defaults.sampling.top_p, 1.0);
  EXPECT_EQ(defaults.sampling.repetition_penalty, 1.0);
  EXPECT_EQ(defaults.sampling.top_logprobs, -1);
}

TEST(ConvertRequestsTest, EveryFieldOfAGenerateRequestArrives) {
  v1::GenerateRequest request;
  request.set_namespace_("tenant");
  v1::Prompt* prompt = request.mutable_prompt();
  prompt->set_system_text("system");
  prompt->set_lead_in("lead");
  prompt->add_chunks("one");
  prompt->add_chunks("two");
  prompt->set_question("why?");
  prompt->add_history()->set_text("hello");
  prompt->add_history()->set_text("hi");
  prompt->mutable_history(1)->set_role(v1::ROLE_ASSISTANT);
  v1::BlendOptions* blend = request.mutable_blend();
  blend->set_reuse(v1::REUSE_PREFIX);
  blend->set_anchoring(v1::ANCHORING_ISOLATED);
  blend->set_policy(v1::POLICY_HKVD);
  blend->set_ratio(0.0);  // zero values given on purpose are not defaults
  blend->set_query_layers(3);
  blend->set_hkvd_layer(0);
  blend->set_hkvd_source(v1::DEVIATION_SOURCE_KEY);
  blend->set_link_tokens(0);
  blend->set_random_seed(7);
  blend->set_store_misses(false);
  blend->set_ratio_mode(v1::RATIO_MODE_AUTO);
  blend->set_ratio_min(0.0);
  blend->set_ratio_max(0.75);
  v1::SamplingOptions* sampling = request.mutable_sampling();
  sampling->set_max_tokens(0);
  sampling->set_temperature(0.5);
  sampling->set_top_k(40);
  sampling->set_top_p(0.0);
  sampling->set_min_p(0.1);
  sampling->set_repetition_penalty(0.0);
  sampling->set_seed(uint64_t{1} << 63);
  sampling->add_stop("\n");
  sampling->set_ignore_eos(true);
  sampling->set_top_logprobs(0);
  prompt->mutable_history(0)->set_role(v1::ROLE_USER);
  const auto converted = FromProto(v1::GenerateRequest(request));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->caller.tenant_namespace, "tenant");
  EXPECT_EQ(converted->prompt.system_text, "system");
  EXPECT_EQ(converted->prompt.lead_in, "lead");
  EXPECT_THAT(converted->prompt.chunks, ElementsAre("one", "two"));
  EXPECT_EQ(converted->prompt.question, "why?");
  ASSERT_EQ(converted->prompt.history.size(), 2u);
  EXPECT_EQ(converted->prompt.history[0].role, Role::kUser);
  EXPECT_EQ(converted->prompt.history[0].text, "hello");
  EXPECT_EQ(converted->prompt.history[1].role, Role::kAssistant);
  EXPECT_EQ(converted->prompt.history[1].text, "hi");
  EXPECT_EQ(converted->blend.reuse, Reuse::kPrefix);
  EXPECT_EQ(converted->blend.anchoring, Anchoring::kIsolated);
  EXPECT_EQ(converted->blend.policy, Policy::kHkvd);
  EXPECT_EQ(converted->blend.ratio, 0.0);
  EXPECT_EQ(converted->blend.ratio_mode, RatioMode::kAuto);
  EXPECT_EQ(converted->blend.ratio_min, 0.0);
  EXPECT_EQ(converted->blend.ratio_max, 0.75);
  EXPECT_EQ(converted->blend.query_layers, 3);
  EXPECT_EQ(converted->blend.hkvd_layer, 0);
  EXPECT_EQ(converted->blend.hkvd_source, DeviationSource::kKey);
  EXPECT_EQ(converted->blend.link_tokens, 0);
  EXPECT_EQ(converted->blend.random_seed, 7u);
  EXPECT_FALSE(converted->blend.store_misses);
  EXPECT_EQ(converted->sampling.max_tokens, 0);
  EXPECT_EQ(converted->sampling.temperature, 0.5);
  EXPECT_EQ(converted->sampling.top_k, 40);
  EXPECT_EQ(converted->sampling.top_p, 0.0);
  EXPECT_EQ(converted->sampling.min_p, 0.1);
  EXPECT_EQ(converted->sampling.repetition_penalty, 0.0);
  EXPECT_EQ(converted->sampling.seed, uint64_t{1} << 63);
  EXPECT_THAT(converted->sampling.stop, ElementsAre("\n"));
  EXPECT_TRUE(converted->sampling.ignore_eos);
  EXPECT_EQ(converted->sampling.top_logprobs, 0);
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

v1::ScoreRequest MinimalScore() {
  v1::ScoreRequest request;
  request.mutable_prompt()->set_question("why?");
  return request;
}

TEST(ConvertRequestsTest, ScoreTakesTextOrTokenIds) {
  v1::ScoreRequest text = MinimalScore();
  text.set_namespace_("tenant");
  text.set_continuation_text("because");
  text.mutable_blend()->set_ratio(0.25);
  const auto by_text = FromProto(std::move(text));
  ASSERT_TRUE(by_text.ok()) << by_text.status();
  EXPECT_EQ(by_text->caller.tenant_namespace, "tenant");
  EXPECT_EQ(by_text->prompt.question, "why?");
  EXPECT_EQ(by_text->blend.ratio, 0.25);
  EXPECT_EQ(by_text->continuation, "because");
  EXPECT_TRUE(by_text->continuation_token_ids.empty());
  EXPECT_FALSE(by_text->return_distributions);

  v1::ScoreRequest ids = MinimalScore();
  ids.mutable_continuation_token_ids()->add_ids(5);
  ids.mutable_continuation_token_ids()->add_ids(-1);  // the engine knows the vocabulary, not the edge
  ids.set_return_distributions(true);
  const auto by_ids = FromProto(std::move(ids));
  ASSERT_TRUE(by_ids.ok()) << by_ids.status();
  EXPECT_EQ(by_ids->continuation, "");
  EXPECT_THAT(by_ids->continuation_token_ids, ElementsAre(5, -1));
  EXPECT_TRUE(by_ids->return_distributions);
}

TEST(ConvertRequestsTest, ScoreWithoutAContinuationIsRefused) {
  v1::ScoreRequest empty_text = MinimalScore();
  empty_text.set_continuation_text("");
  v1::ScoreRequest no_ids = MinimalScore();
  no_ids.mutable_continuation_token_ids();
  v1::ScoreRequest no_prompt;
  no_prompt.set_continuation_text("because");
  const std::vector<std::pair<v1::ScoreRequest, std::string>> cases = {
      {MinimalScore(), "continuation is not set"},
      {empty_text, "continuation_text is empty"},
      {no_ids, "continuation_token_ids.ids has 0 ids"},
      {no_prompt, "prompt is not set"}};
  for (const auto& [request, message] : cases) {
    const auto converted = FromProto(v1::ScoreRequest(request));
    EXPECT_EQ(converted.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(converted.status().message()), HasSubstr(message));
  }
}

TEST(ConvertRequestsTest, EveryFieldOfAPutRequestArrives) {
  v1::PutChunksRequest request;
  request.set_namespace_("tenant");
  request.set_system_text("system");
  request.set_lead_in("lead");
  request.set_anchoring(v1::ANCHORING_ISOLATED);
  request.add_chunks("one");
  request.set_label("corpus");
  request.add_chunk_labels("one's");
  request.set_pin(true);
  const auto converted = FromProto(v1::PutChunksRequest(request));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->caller.tenant_namespace, "tenant");
  EXPECT_EQ(converted->system_text, "system");
  EXPECT_EQ(converted->lead_in, "lead");
  EXPECT_EQ(converted->anchoring, Anchoring::kIsolated);
  EXPECT_THAT(converted->chunks, ElementsAre("one"));
  EXPECT_EQ(converted->label, "corpus");
  EXPECT_THAT(converted->chunk_labels, ElementsAre("one's"));
  EXPECT_TRUE(converted->pin);

  v1::PutChunksRequest unknown;
  unknown.set_anchoring(static_cast<v1::Anchoring>(8));
  EXPECT_THAT(std::string(FromProto(std::move(unknown)).status().message()),
              HasSubstr("anchoring is 8; allowed: "));
}

TEST(ConvertRequestsTest, EveryFieldOfASplitRequestArrives) {
  v1::SplitDocumentRequest request;
  request.set_namespace_("tenant");
  request.set_system_text("system");
  request.set_lead_in("lead");
  request.set_anchoring(v1::ANCHORING_ISOLATED);
  request.set_text("document");
  request.set_goes_on(true);
  request.set_chunk_tokens(99);
  request.set_overlap_tokens(0);
  const auto converted = FromProto(v1::SplitDocumentRequest(request));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->caller.tenant_namespace, "tenant");
  EXPECT_EQ(converted->system_text, "system");
  EXPECT_EQ(converted->lead_in, "lead");
  EXPECT_EQ(converted->anchoring, Anchoring::kIsolated);
  EXPECT_EQ(converted->text, "document");
  EXPECT_TRUE(converted->goes_on);
  EXPECT_EQ(converted->chunk_tokens, 99);
  EXPECT_EQ(converted->overlap_tokens, 0);

  const auto defaults = FromProto(v1::SplitDocumentRequest());
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->chunk_tokens, 512);
  EXPECT_EQ(defaults->overlap_tokens, 64);
  v1::SplitDocumentRequest unknown;
  unknown.set_anchoring(static_cast<v1::Anchoring>(8));
  EXPECT_THAT(std::string(FromProto(std::move(unknown)).status().message()),
              HasSubstr("anchoring is 8; allowed: "));
}

TEST(ConvertRequestsTest, EveryFieldOfAPrefetchRequestArrives) {
  v1::PrefetchChunksRequest request;
  request.set_namespace_("tenant");
  request.set_system_text("system");
  request.set_lead_in("lead");
  request.set_anchoring(v1::ANCHORING_ISOLATED);
  request.add_chunks("one");
  const auto converted = FromProto(v1::PrefetchChunksRequest(request));
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->caller.tenant_namespace, "tenant");
  EXPECT_EQ(converted->system_text, "system");
  EXPECT_EQ(converted->lead_in, "lead");
  EXPECT_EQ(converted->anchoring, Anchoring::kIsolated);
  EXPECT_THAT(converted->chunks, ElementsAre("one"));
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
}

}  // namespace
}  // namespace kvblend::server
