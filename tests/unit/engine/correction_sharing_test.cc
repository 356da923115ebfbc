// Two engines that share a Redis learn a correction together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/kv/correction_file.h"
#include "tests/support/redis_server.h"
#include "tests/unit/engine/correction_learning_fixture.h"

namespace kvblend {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class CorrectionSharingTest : public CorrectionLearningTest {
 protected:
  // The chunks are in memory and in Redis, what was learned is in memory and, of replicas, in Redis.
  EngineOptions Options() override {
    if (!redis_.has_value()) redis_.emplace(redis_folder_, store::RedisServer::Options{});
    EngineOptions options = EngineFixture::Options();
    options.chunk_redis.nodes = redis_->endpoint().ToString();
    options.chunk_redis.budget_seconds = 10;  // on a busy machine a sound Redis may take long
    options.share_correction_seconds = 0.1;
    return options;
  }

  std::unique_ptr<Engine> Another(const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
    EngineOptions options = Options();
    options.model_path = test_support::TemporaryPath("engine_test.gguf");
    change(options);
    auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  /// Replicas whose moments lie in Redis.
  std::set<std::string> Replicas() {
    std::set<std::string> replicas;
    const auto keys = redis_->Call({"KEYS", "kvb1:moments:*:note"});
    EXPECT_TRUE(keys.ok()) << keys.status();
    for (const store::redis::Reply& key : keys->elements) replicas.insert(key.text);
    return replicas;
  }

  static CorrectionStats AwaitStats(Engine& engine,
                                    const std::function<bool(const CorrectionStats&)>& wanted) {
    while (true) {
      const CorrectionStats stats = *engine.UpdateCorrection(CorrectionAction::kShow);
      if (wanted(stats)) return stats;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  /// Until others can read all that the engine has seen so far.
  void AwaitPublished() {
    const int64_t before = Show().moments_published;
    AskOverNewChunks();
    Settle();
    AwaitStats(*engine_, [&](const CorrectionStats& stats) { return stats.moments_published > before; });
  }

  const test_support::TemporaryFolder redis_folder_;
  std::optional<store::RedisServer> redis_;
};

TEST_F(CorrectionSharingTest, OneLearnsFromWhatAnotherHasSeenAndBothFromAll) {
  LearnOne();
  AwaitPublished();
  const CorrectionStats first = Show();
  EXPECT_TRUE(first.shared);
  EXPECT_EQ(first.replicas_found, 0);
  EXPECT_EQ(first.moments_refused, 0);
  std::unique_ptr<Engine> other = Another();
  const CorrectionStats learned =
      AwaitStats(*other, [](const CorrectionStats& stats) { return !stats.version.empty(); });
  EXPECT_TRUE(learned.learned);
  EXPECT_EQ(learned.tokens, 0);  // of its own
  EXPECT_EQ(learned.fits_applied, 1);
  EXPECT_EQ(learned.replicas_merged, 1);
  EXPECT_EQ(learned.moments_refused, 0);
  EXPECT_EQ(learned.moments_published, 0);
  ASSERT_THAT(learned.deviation_after, SizeIs(3));
  EXPECT_LT(learned.deviation_after[1], learned.deviation_before[1]);
  EXPECT_THAT(Replicas(), SizeIs(1));

  engine_.swap(other);
  expected_ = 0;
  EXPECT_EQ(Ask({Text(1), Text(0), Text(2)}).correction, learned.version);
  AskOverNewChunks();
  AwaitStats(*engine_, [](const CorrectionStats& stats) { return stats.moments_published > 0; });
  EXPECT_THAT(Replicas(), SizeIs(2));
  AwaitStats(*other, [](const CorrectionStats& stats) { return stats.replicas_found == 1; });
}

TEST_F(CorrectionSharingTest, WhoIsFrozenOrResetHasNothingInRedis) {
  AwaitPublished();
  EXPECT_THAT(Replicas(), SizeIs(1));
  ASSERT_TRUE(engine_->UpdateCorrection(CorrectionAction::kFreeze).ok());
  EXPECT_THAT(Replicas(), IsEmpty());
  ASSERT_TRUE(engine_->UpdateCorrection(CorrectionAction::kLearn).ok());
  AwaitPublished();
  EXPECT_THAT(Replicas(), SizeIs(1));
  ASSERT_TRUE(engine_->UpdateCorrection(CorrectionAction::kReset).ok());
  EXPECT_THAT(Replicas(), IsEmpty());
  EXPECT_TRUE(redis_->Call({"KEYS", "kvb1:moments:*"})->elements.empty());
  AwaitPublished();  // it goes on learning
  EXPECT_THAT(Replicas(), SizeIs(1));
}

TEST_F(CorrectionSharingTest, ARestartedServerIsTheSameReplicaWhereItsMomentsOutliveIt) {
  const auto with_disk = [&](EngineOptions& options) { options.chunk_disk_path = folder_ / "chunks"; };
  Restart(with_disk);
  AwaitPublished();
  const std::set<std::string> before = Replicas();
  Restart(with_disk);
  EXPECT_GT(Show().tokens, 0);
  AwaitPublished();
  EXPECT_EQ(Replicas(), before);
  EXPECT_EQ(Show().replicas_found, 0);
  Restart();  // without its disk it is another one, and what the last one saw is not lost
  AwaitStats(*engine_, [](const CorrectionStats& stats) { return stats.replicas_found == 1; });
}

// It has no moments of its own, and yet a file that tells what learning began with.
TEST_F(CorrectionSharingTest, WhatWasLearnedFromOthersAloneOutlivesTheEngine) {
  Restart([&](EngineOptions& options) { options.chunk_disk_path = folder_ / "chunks"; });
  LearnOne();
  AwaitPublished();
  kv::LearnedCorrection given = kv::ReadCorrectionFile(LearnedPath())->correction;
  for (kv::LayerCorrection& layer : given.layers) layer = {};  // leaves all of the deviation
  ASSERT_TRUE(kv::WriteCorrectionFile(folder_ / "given", given).ok());
  const std::string given_version = kv::CorrectionVersion(kv::EncodeCorrection(given));

  const auto with_given = [&](EngineOptions& options) {
    options.chunk_disk_path = folder_ / "other";
    options.correction = folder_ / "given";
  };
  const auto alone = [&](EngineOptions& options) {
    with_given(options);
    options.share_correction = false;
  };
  const auto show = [](Engine& engine) { return *engine.UpdateCorrection(CorrectionAction::kShow); };
  std::unique_ptr<Engine> other = Another(with_given);
  const CorrectionStats learned =
      AwaitStats(*other, [](const CorrectionStats& stats) { return stats.fits_applied == 1; });
  EXPECT_TRUE(learned.learned);
  EXPECT_EQ(learned.tokens, 0);
  EXPECT_NE(learned.version, given_version);
  other.reset();
  other = Another(alone);
  EXPECT_EQ(show(*other).version, learned.version);
  EXPECT_TRUE(show(*other).learned);
  EXPECT_THAT(show(*other).deviation_before, IsEmpty());
  other.reset();
  // What learning began with is not given any more.
  other = Another([&](EngineOptions& options) {
    alone(options);
    options.correction = "none";
  });
  EXPECT_EQ(show(*other).version, "");
}

TEST_F(CorrectionSharingTest, WithoutRedisEachLearnsAlone) {
  AwaitPublished();
  redis_->Kill();
  const CorrectionStats learned = LearnOne();
  EXPECT_FALSE(learned.version.empty());
  EXPECT_EQ(learned.replicas_merged, 0);
  AwaitStats(*engine_, [](const CorrectionStats& stats) { return stats.sharing_failures > 0; });
  const int64_t before = Show().moments_published;
  redis_->Restart();
  AwaitStats(*engine_, [&](const CorrectionStats& stats) { return stats.moments_published > before; });
  EXPECT_THAT(Replicas(), SizeIs(1));
}

TEST_F(CorrectionSharingTest, SwitchedOffNothingIsToldAndNothingHeard) {
  AwaitPublished();
  const std::set<std::string> before = Replicas();
  Restart([](EngineOptions& options) { options.share_correction = false; });
  LearnOne();
  EXPECT_FALSE(Show().shared);
  EXPECT_EQ(Show().replicas_found, 0);
  engine_.reset();
  EXPECT_EQ(Replicas(), before);
}

}  // namespace
}  // namespace kvblend
