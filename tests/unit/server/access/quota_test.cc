#include "server/access/quota.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/retry_delay.h"
#include "engine/api/computed_tokens.h"
#include "engine/api/namespace_limit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/tenant_calls.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/json/json.h"
#include "tests/support/fake_engine.h"

namespace kvblend::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(QuotaTest, RatesComeBackEvenly) {
  Quota quota({.name = "t", .requests_per_minute = 2});
  const absl::Time start = absl::FromUnixSeconds(1000);
  EXPECT_TRUE(quota.TakeRequest(start).ok());
  EXPECT_TRUE(quota.TakeRequest(start).ok());
  EXPECT_EQ(quota.TakeRequest(start + absl::Seconds(29)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(quota.TakeRequest(start + absl::Seconds(31)).ok());
  EXPECT_FALSE(quota.TakeRequest(start + absl::Seconds(32)).ok());
  EXPECT_TRUE(quota.TakeRequest(start + absl::Seconds(1000)).ok());
  EXPECT_TRUE(quota.TakeRequest(start + absl::Seconds(1000)).ok());
  EXPECT_FALSE(quota.TakeRequest(start + absl::Seconds(1000)).ok())
      << "no more than a minute's worth is saved";
}

TEST(QuotaTest, ComputedTokensAreOwed) {
  Quota quota({.name = "t", .computed_tokens_per_minute = 60});
  const absl::Time start = absl::FromUnixSeconds(1000);
  EXPECT_TRUE(quota.TakeRequest(start).ok());
  Quota::Hold call;
  ASSERT_TRUE(quota.BeginComputing(90, start, &call).ok());
  quota.AddComputedTokens(90, 90, &call);
  quota.End(&call);
  EXPECT_FALSE(quota.BeginComputing(0, start + absl::Seconds(29), &call).ok());
  EXPECT_TRUE(quota.TakeRequest(start + absl::Seconds(29)).ok()) << "calls that compute nothing go on";
  EXPECT_TRUE(quota.BeginComputing(0, start + absl::Seconds(31), &call).ok());
  quota.End(&call);
  quota.SetLimits({.name = "t", .computed_tokens_per_minute = 10});
  EXPECT_THAT(std::string(quota.BeginComputing(0, start + absl::Seconds(31), &call).message()),
              HasSubstr("limit of 10 computed tokens per minute"));
}

TEST(QuotaTest, LimitsHoldAmongManyThreads) {
  constexpr int kThreads = 8, kCalls = 2000;
  Quota quota({.name = "t", .requests_per_minute = 5000, .concurrent_requests = 3});
  const absl::Time now = absl::FromUnixSeconds(1000);
  std::atomic<int> taken = 0, at_once = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) {
        if (quota.TakeRequest(now).ok()) ++taken;
        Quota::Hold hold;
        if (!quota.BeginComputing(0, now, &hold).ok()) continue;
        const int here = ++at_once;
        for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {
        }
        --at_once;
        quota.End(&hold);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken, 5000);
  EXPECT_LE(most, 3);
  Quota::Hold holds[4];
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(quota.BeginComputing(0, now, &holds[i]).ok()) << "every place was given back";
  EXPECT_FALSE(quota.BeginComputing(0, now, &holds[3]).ok());
}

TEST(QuotaTest, CallsAtOnceHoldWhatTheyMayCompute) {
  Quota quota({.name = "t", .computed_tokens_per_minute = 60});
  const absl::Time now = absl::FromUnixSeconds(1000);
  Quota::Hold first, second, third, refused;
  ASSERT_TRUE(quota.BeginComputing(30, now, &first).ok());
  ASSERT_TRUE(quota.BeginComputing(20, now, &second).ok());
  const absl::Status status = quota.BeginComputing(20, now, &refused);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("limit of 60 computed tokens per minute, with what its other"));
  EXPECT_NEAR(absl::ToDoubleSeconds(RetryDelayOf(status).value_or(absl::ZeroDuration())), 10, 0.002)
      << "what is held counts as if it were computed";
  EXPECT_TRUE(quota.TakeRequest(now).ok()) << "calls that compute nothing go on";
  quota.EndComputing(&refused);  // which holds nothing

  ASSERT_TRUE(quota.BeginComputing(10, now, &third).ok()) << "just as much as is left";
  quota.AddComputedTokens(5, 20, &first);  // most of what was expected was reused
  EXPECT_FALSE(quota.BeginComputing(16, now, &refused).ok());
  quota.EndComputing(&second);
  quota.EndComputing(&second);
  EXPECT_FALSE(quota.BeginComputing(36, now, &refused).ok()) << "held: 10 and 10, used: 5";
  ASSERT_TRUE(quota.BeginComputing(35, now, &second).ok());
  quota.AddComputedTokens(100, 100, &third);  // ten times as much as it was thought to
  EXPECT_FALSE(quota.BeginComputing(0, now, &refused).ok()) << "computed tokens are counted as they come";
  for (Quota::Hold* hold : {&first, &second, &third}) quota.EndComputing(hold);
  EXPECT_FALSE(quota.BeginComputing(0, now + absl::Seconds(44), &refused).ok()) << "105 were used";
  EXPECT_TRUE(quota.BeginComputing(0, now + absl::Seconds(46), &refused).ok());
}

TEST(QuotaTest, PlacesAreForCallsThatComputeAndForThoseThatDoNot) {
  Quota quota({.name = "t", .computed_tokens_per_minute = 60, .concurrent_requests = 2});
  const absl::Time now = absl::FromUnixSeconds(1000);
  Quota::Hold computing, looking, refused;
  ASSERT_TRUE(quota.BeginComputing(1000, now, &computing).ok());
  ASSERT_TRUE(quota.Begin(&looking).ok()) << "it computes nothing";
  EXPECT_FALSE(quota.Begin(&refused).ok());
  EXPECT_FALSE(quota.BeginComputing(0, now, &refused).ok());
  quota.End(&refused);
  quota.EndComputing(&computing);  // its answer waits for its reader
  EXPECT_FALSE(quota.Begin(&refused).ok());
  quota.End(&looking);
  quota.End(&looking);
  ASSERT_TRUE(quota.BeginComputing(1000, now, &looking).ok()) << "nothing else is computed";
  quota.End(&computing);
  EXPECT_TRUE(quota.Begin(&refused).ok());
  EXPECT_EQ(quota.use().refused_for_concurrent, 3);
}

TEST(QuotaTest, AloneACallMayBeLargerThanTheLimit) {
  Quota quota({.name = "t", .computed_tokens_per_minute = 60});
  const absl::Time now = absl::FromUnixSeconds(1000);
  Quota::Hold large, other;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(quota.BeginComputing(1000, now, &large).ok()) << "one after the other";
    EXPECT_FALSE(quota.BeginComputing(1, now, &other).ok());
    quota.AddComputedTokens(10, 950, &large);
    EXPECT_FALSE(quota.BeginComputing(1, now, &other).ok()) << "50 of the large one may still come";
    quota.AddComputedTokens(10, 10, &large);
    EXPECT_TRUE(i == 1 || quota.BeginComputing(0, now, &other).ok());
    quota.EndComputing(&other);
    quota.EndComputing(&large);
  }
  quota.SetLimits({.name = "t"});
  EXPECT_TRUE(quota.BeginComputing(1000, now, &large).ok());
  EXPECT_TRUE(quota.BeginComputing(1000, now, &other).ok()) << "no limit";
}

TEST(QuotaTest, ThreadsThatBeginTogetherStayBelowTheLimit) {
  constexpr int kThreads = 8, kCalls = 500, kTokens = 10, kLimit = 35;
  Quota quota({.name = "t", .computed_tokens_per_minute = kLimit});
  std::atomic<int> at_once = 0, most = 0, begun = 0;
  const absl::Time start = absl::FromUnixSeconds(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) {
        Quota::Hold hold;
        if (!quota.BeginComputing(kTokens, start, &hold).ok()) continue;
        ++begun;
        const int here = ++at_once;
        for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {
        }
        quota.AddComputedTokens(0, kTokens / 2, &hold);  // it was all reused
        --at_once;
        quota.End(&hold);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(begun, 0);
  EXPECT_LE(most, 2 * kLimit / kTokens) << "each holds half of its tokens at least";
  Quota::Hold holds[4];
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(quota.BeginComputing(kTokens, start, &holds[i]).ok());
  EXPECT_FALSE(quota.BeginComputing(kTokens, start, &holds[3]).ok())
      << "everything held was given back, once";
}

TEST(QuotaTest, RefusalsSayWhenToComeBack) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  Quota requests({.name = "t", .requests_per_minute = 2});
  Quota tokens({.name = "t", .computed_tokens_per_minute = 60});
  EXPECT_TRUE(requests.TakeRequest(start).ok());
  EXPECT_TRUE(requests.TakeRequest(start).ok());
  Quota::Hold call;
  ASSERT_TRUE(tokens.BeginComputing(0, start, &call).ok());
  tokens.AddComputedTokens(90, 0, &call);
  tokens.End(&call);
  const auto take = [&](absl::Time time) { return requests.TakeRequest(time); };
  const auto begin = [&](absl::Time time) { return tokens.BeginComputing(0, time, &call); };
  using Ask = std::function<absl::Status(absl::Time)>;
  for (const Ask& ask : {Ask(take), Ask(begin)}) {
    const absl::Status refused = ask(start + absl::Seconds(20));
    const absl::Duration delay = RetryDelayOf(refused).value_or(absl::ZeroDuration());
    EXPECT_NEAR(absl::ToDoubleSeconds(delay), 10, 0.002) << refused;
    EXPECT_FALSE(ask(start + absl::Seconds(20) + delay - absl::Milliseconds(5)).ok());
    EXPECT_TRUE(ask(start + absl::Seconds(20) + delay).ok());
  }
}

TEST(QuotaTest, WhatIsUsedAndRefusedIsCounted) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  Quota quota(
      {.name = "t", .requests_per_minute = 2, .computed_tokens_per_minute = 60, .concurrent_requests = 1});
  Quota::Hold first, second;
  ASSERT_TRUE(quota.TakeRequest(now).ok());
  ASSERT_TRUE(quota.BeginComputing(5, now, &first).ok());
  EXPECT_FALSE(quota.BeginComputing(5, now, &second).ok());  // at once
  quota.AddComputedTokens(100, 5, &first);
  quota.End(&first);
  EXPECT_FALSE(quota.BeginComputing(5, now, &second).ok());  // tokens
  ASSERT_TRUE(quota.TakeRequest(now + absl::Minutes(1)).ok());
  ASSERT_TRUE(quota.TakeRequest(now + absl::Minutes(1)).ok());
  EXPECT_FALSE(quota.TakeRequest(now + absl::Minutes(1)).ok());  // requests
  const TenantUse use = quota.use();
  EXPECT_EQ(use.requests, 4);
  EXPECT_EQ(use.computed_tokens, 100);
  EXPECT_EQ(use.refused_for_requests, 1);
  EXPECT_EQ(use.refused_for_computed_tokens, 1);
  EXPECT_EQ(use.refused_for_concurrent, 1);
}

// Its events wait for a reader after the last of them, if the test says so.
class KeptSink : public EventSink<v1::GenerateEvent> {
 public:
  explicit KeptSink(bool keeps = false) : keeps_(keeps) {}
  void OnEvent(const v1::GenerateEvent&) override {}
  void OnDone(const absl::Status& status) override { done = status; }
  void KeepUntilSent(std::shared_ptr<void> kept) override {
    if (keeps_) kept_ = std::move(kept);
  }
  void Sent() { kept_ = nullptr; }
  absl::Status done = absl::UnknownError("not done");

 private:
  const bool keeps_;
  std::shared_ptr<void> kept_;
};

class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() { slot_.Serve(&engine_); }
  static v1::GenerateRequest Question() {
    v1::GenerateRequest request;
    request.mutable_prompt()->set_question("why?");
    return request;
  }

  EngineSlot slot_;
  EngineCalls calls_{&slot_, {.engine_options = {}, .max_message_bytes = 0}};
  kvblend::testing::FakeEngine engine_;
};

TEST_F(PlacesTest, WhatTakesLongTakesAPlace) {
  const Tenant tenant = {.name = "t", .chunk_namespace = "a", .concurrent_requests = 1};
  const auto calls = MakeTenantCalls(&calls_, tenant, std::make_shared<Quota>(tenant));
  v1::SplitDocumentRequest split;
  split.set_text("text");
  split.set_chunk_tokens(2);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(calls->Split(split, {}).ok()) << "one after the other";
  ASSERT_TRUE(calls->Generate(Question(), {}, std::make_shared<KeptSink>()).ok());
  const std::string limit = "1 requests at once";
  EXPECT_THAT(std::string(calls->Split(split, {}).status().message()), HasSubstr(limit));
  EXPECT_THAT(std::string(calls->Prefetch({}).status().message()), HasSubstr(limit));
  EXPECT_THAT(std::string(calls->Pin({}).status().message()), HasSubstr(limit));
  EXPECT_TRUE(calls->List({}).ok());
  engine_.NextGenerate()->Finish(absl::OkStatus(), GenerateResult());
  EXPECT_TRUE(calls->Split(split, {}).ok());
  EXPECT_TRUE(calls->Prefetch({}).ok());
  v1::PinChunksRequest pin;
  pin.add_keys(std::string(64, 'a'));
  EXPECT_EQ(calls->Pin(pin)->missing_keys_size(), 1);
}

TEST_F(PlacesTest, ACallHasItsPlaceUntilItsEventsAreSent) {
  const Tenant tenant = {.name = "t", .chunk_namespace = "a", .concurrent_requests = 1};
  const auto calls = MakeTenantCalls(&calls_, tenant, std::make_shared<Quota>(tenant));
  const auto slow = std::make_shared<KeptSink>(/*keeps=*/true);
  ASSERT_TRUE(calls->Generate(Question(), {}, slow).ok());
  engine_.NextGenerate()->Finish(absl::OkStatus(), GenerateResult());
  ASSERT_TRUE(slow->done.ok());
  EXPECT_THAT(std::string(calls->Generate(Question(), {}, slow).status().message()),
              HasSubstr("1 requests at once"));
  slow->Sent();
  EXPECT_TRUE(calls->Generate(Question(), {}, slow).ok());
  slow->Sent();  // which is before the end only for clients that have gone
  EXPECT_FALSE(calls->Generate(Question(), {}, slow).ok());
  engine_.NextGenerate()->Finish(absl::OkStatus(), GenerateResult());
  EXPECT_TRUE(calls->Generate(Question(), {}, slow).ok());
  engine_.NextGenerate()->Finish(absl::OkStatus(), GenerateResult());
}

TEST_F(PlacesTest, WhatWasComputedCountsThoughTheClientHasGone) {
  const Tenant tenant = {.name = "t", .chunk_namespace = "a", .computed_tokens_per_minute = 1000};
  const auto quota = std::make_shared<Quota>(tenant);
  const auto calls = MakeTenantCalls(&calls_, tenant, quota);
  const auto sink = std::make_shared<KeptSink>();
  ASSERT_TRUE(calls->Generate(Question(), {}, sink).ok());
  engine_.NextGenerate()->Finish(WithComputedTokens(absl::CancelledError("gone"), 1001), GenerateResult());
  EXPECT_EQ(quota->use().computed_tokens, 1001);
  EXPECT_THAT(std::string(calls->Generate(Question(), {}, sink).status().message()),
              HasSubstr("1000 computed tokens per minute"));
}

TEST_F(PlacesTest, RefusalsTellNothingOfOthers) {
  const Tenant tenant = {.name = "ta", .chunk_namespace = "a"};
  Tenant with_rights = tenant;
  with_rights.admin = true;
  const auto calls = MakeTenantCalls(&calls_, tenant, std::make_shared<Quota>(tenant));
  const auto admins = MakeTenantCalls(&calls_, with_rights, std::make_shared<Quota>(with_rights));
  const auto sink = std::make_shared<KeptSink>();

  const std::string full = "the queue is full: requests of 777 tokens wait, and this one has 5; allowed: 780";
  engine_.RefuseWith(WithRetryDelay(absl::ResourceExhaustedError(full), absl::Milliseconds(40)));
  const absl::Status refused = calls->Generate(Question(), {}, sink).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), AllOf(StartsWith("the queue is full"), Not(HasSubstr("7"))));
  EXPECT_EQ(RetryDelayOf(refused), absl::Milliseconds(40));
  EXPECT_EQ(LoggedMessage(refused), full) << "operators see all of it";
  EXPECT_EQ(admins->Generate(Question(), {}, sink).status().message(), full);

  engine_.RefuseWith(absl::OkStatus());
  ASSERT_TRUE(calls->Generate(Question(), {}, sink).ok());
  engine_.NextGenerate()->Finish(absl::ResourceExhaustedError("777 bytes of all are pinned"),
                                 GenerateResult());
  EXPECT_THAT(std::string(sink->done.message()), Not(HasSubstr("777")));

  v1::PinChunksRequest pin;
  pin.add_keys(engine_.StoreChunk("a", 1, 2000).ToHex());  // more than may be pinned
  EXPECT_THAT(std::string(calls->Pin(pin).status().message()), StartsWith("there is no room"));
  EXPECT_THAT(std::string(admins->Pin(pin).status().message()), HasSubstr("pinned"));

  const auto told = [&](const absl::Status& refusal) {
    engine_.RefuseWith(refusal);
    return std::string(calls->Generate(Question(), {}, sink).status().message());
  };
  const std::string words = absl::StrCat("9 bytes needed; ", NamespaceQuotas().Describe("a", 100));
  const absl::Status limited = absl::ResourceExhaustedError(words);
  EXPECT_EQ(told(WithNamespaceLimit(limited, "a")), words);
  EXPECT_THAT(told(WithNamespaceLimit(limited, "another")), StartsWith("there is no room"));
  EXPECT_THAT(told(limited), StartsWith("there is no room")) << "the words alone tell nothing";
}

}  // namespace
}  // namespace kvblend::server
