#include "engine/generate/sampling_options.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace kvblend::generate {
namespace {

std::string MessageOf(const std::function<void(SamplingOptions&)>& change) {
  SamplingOptions options;
  change(options);
  const absl::Status status = ValidateSampling(options, 100);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(ValidateSamplingTest, DefaultsAndEdgesAreAllowed) {
  EXPECT_EQ(MessageOf([](SamplingOptions&) {}), "");
  EXPECT_EQ(MessageOf([](SamplingOptions& o) {
              o.max_tokens = 1;
              o.temperature = 10;
              o.top_k = std::numeric_limits<int32_t>::max();
              o.top_p = std::numeric_limits<double>::denorm_min();
              o.min_p = 1;
              o.repetition_penalty = 10;
              o.presence_penalty = -2;
              o.frequency_penalty = 2;
              o.logit_bias = {{0, -100}, {99, 100}};
              o.top_logprobs = 20;
              o.stop.assign(16, "x");
            }),
            "");
}

TEST(ValidateSamplingTest, MessagesNameFieldValueAndRange) {
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(MessageOf([](auto& o) { o.max_tokens = 0; }), "max_tokens is 0; allowed: a whole number from 1");
  EXPECT_EQ(MessageOf([&](auto& o) { o.temperature = nan; }), "temperature is NaN; allowed: 0 to 10");
  EXPECT_EQ(MessageOf([&](auto& o) { o.temperature = inf; }), "temperature is inf; allowed: 0 to 10");
  EXPECT_EQ(MessageOf([](auto& o) { o.temperature = -0.5; }), "temperature is -0.5; allowed: 0 to 10");
  EXPECT_EQ(MessageOf([](auto& o) { o.top_p = 0; }), "top_p is 0; allowed: above 0 to 1");
  EXPECT_EQ(MessageOf([](auto& o) { o.top_p = std::nextafter(1.0, 2.0); }),
            "top_p is 1.0000000000000002; allowed: above 0 to 1");
  EXPECT_EQ(MessageOf([&](auto& o) { o.min_p = nan; }), "min_p is NaN; allowed: 0 to 1");
  EXPECT_EQ(MessageOf([](auto& o) { o.repetition_penalty = 0; }),
            "repetition_penalty is 0; allowed: above 0 to 10");
  EXPECT_EQ(MessageOf([](auto& o) { o.repetition_penalty = 10.5; }),
            "repetition_penalty is 10.5; allowed: above 0 to 10");
  EXPECT_EQ(MessageOf([](auto& o) { o.presence_penalty = 2.5; }),
            "presence_penalty is 2.5; allowed: -2 to 2");
  EXPECT_EQ(MessageOf([&](auto& o) { o.frequency_penalty = nan; }),
            "frequency_penalty is NaN; allowed: -2 to 2");
  EXPECT_EQ(MessageOf([](auto& o) { o.logit_bias[100] = 1; }),
            "logit_bias is for the token 100; allowed: tokens 0 to 99");
  EXPECT_EQ(MessageOf([](auto& o) { o.logit_bias[5] = 101; }), "logit_bias[5] is 101; allowed: -100 to 100");
  EXPECT_EQ(MessageOf([](auto& o) { o.top_k = -1; }), "top_k is -1; allowed: 0 (off) or more");
  EXPECT_EQ(MessageOf([](auto& o) { o.top_logprobs = -2; }), "top_logprobs is -2; allowed: -1 (off) to 20");
  EXPECT_EQ(MessageOf([](auto& o) { o.top_logprobs = 21; }), "top_logprobs is 21; allowed: -1 (off) to 20");
  EXPECT_EQ(MessageOf([](auto& o) { o.stop.assign(17, "x"); }), "stop is 17 strings; allowed: up to 16");
  EXPECT_EQ(MessageOf([](auto& o) {
              o.stop = {"x", ""};
            }),
            "stop[1] is empty; allowed: at least one character");
}

}  // namespace
}  // namespace kvblend::generate
