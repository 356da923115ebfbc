// Learning a correction while an engine serves: from prompts with missing chunks to the version in a report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/kv/correction_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::SizeIs;

class CorrectionLearningTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.chunk_disk_path = (folder_ / "chunks").string();
    return options;
  }
  test_support::TinyModelSpec ModelSpec() override { return {.num_layers = 3}; }

  void TearDown() override { engine_.reset(); }  // before the folder goes

  static std::string Text(int number) {
    std::string text = absl::StrCat("Passage ", number, ":");
    uint32_t state = 77u * static_cast<uint32_t>(number) + 5;
    for (int word = 0; word < 12; ++word) {
      state = state * 1664525u + 1013904223u;
      absl::StrAppend(&text, " ", state >> 12);
    }
    return text + "\n";
  }

  /// Asks a question over three chunks that were never seen.
  PromptReport AskOverNewChunks() {
    const int first = 3 * asked_++;
    expected_ += 3;
    return Ask({Text(first), Text(first + 1), Text(first + 2)});
  }
  PromptReport Ask(std::vector<std::string> chunks, Policy policy = Policy::kNone) {
    GenerateRequest request = Request(std::move(chunks));
    request.sampling.max_tokens = 1;
    request.blend.policy = policy;
    return Generate(std::move(request))->prompts.at(0);
  }

  CorrectionStats Show() { return *engine_->UpdateCorrection(CorrectionAction::kShow); }

  /// Until nothing is computed behind a response, and nothing waits to be learned from.
  CorrectionStats Settle() {
    while (true) {
      const EngineStats stats = engine_->Stats();
      const bool idle = stats.background_waiting == 0 && stats.correction.waiting_chunks == 0 &&
                        stats.background_chunks_stored + stats.background_chunks_failed >= expected_;
      if (idle) return stats.correction;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  /// Asks until a correction is in force.
  CorrectionStats LearnOne() {
    for (int i = 0; i < 60; ++i) {
      AskOverNewChunks();
      if (const CorrectionStats stats = Settle(); !stats.version.empty()) return stats;
    }
    ADD_FAILURE() << "nothing was learned";
    return {};
  }

  /// The same model, folder and options.
  void Restart(const std::function<void(EngineOptions&)>& change = [](EngineOptions&) {}) {
    EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
    engine_.reset();
    expected_ = 0;
    EngineOptions options = Options();
    options.model_path = testing::TempDir() + "/engine_test_" + std::to_string(getpid()) + ".gguf";
    change(options);
    auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
  }

  std::string MomentsPath() const { return (folder_ / "chunks/learned.kvmoments").string(); }
  std::string LearnedPath() const { return (folder_ / "chunks/learned.kvcorrection").string(); }

  int asked_ = 0;
  int64_t expected_ = 1;  // entries stored behind responses since the engine started: the first is the anchor
  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = temporary_folder_.path();
};

TEST_F(CorrectionLearningTest, ServingMissesLeadsToACorrectionInForce) {
  EXPECT_EQ(AskOverNewChunks().correction, "");
  const CorrectionStats stats = LearnOne();
  EXPECT_EQ(stats.learning, LearningState::kOn);
  EXPECT_TRUE(stats.learned);
  EXPECT_GE(stats.fits_applied, 1);
  EXPECT_GE(stats.fits, stats.fits_applied);
  EXPECT_GE(stats.fitted_chunks, 8);
  EXPECT_GE(stats.kept_back_chunks, 2);
  // The first of each three chunks stands where the store computes it, and says nothing.
  EXPECT_EQ(stats.fitted_chunks + stats.kept_back_chunks, 2 * asked_);
  ASSERT_THAT(stats.deviation_before, SizeIs(3));
  ASSERT_THAT(stats.deviation_after, SizeIs(3));
  EXPECT_EQ(stats.deviation_before[0], 0);  // the first layer's KV knows nothing of other tokens
  EXPECT_LT(stats.deviation_after[1], stats.deviation_before[1]);

  const PromptReport report = Ask({Text(1), Text(0), Text(2)});
  EXPECT_EQ(report.correction, stats.version);
  EXPECT_GT(report.reused_tokens, 0);
  EXPECT_EQ(Ask({Text(1)}).correction, "");  // one chunk behind its anchor is exact
}

TEST_F(CorrectionLearningTest, WhatWasLearnedOutlivesTheEngine) {
  const CorrectionStats learned = LearnOne();
  Restart();
  const CorrectionStats recalled = Show();
  EXPECT_EQ(recalled.version, learned.version);
  EXPECT_TRUE(recalled.learned);
  EXPECT_EQ(recalled.tokens, learned.tokens);
  EXPECT_EQ(recalled.fitted_chunks, learned.fitted_chunks);
  EXPECT_EQ(Ask({Text(1), Text(0)}).correction, learned.version);
  const auto file = kv::ReadCorrectionFile(LearnedPath());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version, learned.version);

  // Given another correction, the engine begins with that, and keeps what it has seen.
  ASSERT_TRUE(kv::WriteCorrectionFile(folder_ / "given", file->correction).ok());
  kv::LearnedCorrection other = file->correction;
  other.origin.data = "somewhere else";
  ASSERT_TRUE(kv::WriteCorrectionFile(folder_ / "other", other).ok());
  Restart([&](EngineOptions& options) { options.correction = folder_ / "other"; });
  EXPECT_EQ(Show().version, kv::CorrectionVersion(kv::EncodeCorrection(other)));
  EXPECT_FALSE(Show().learned);
  EXPECT_EQ(Show().tokens, learned.tokens);
  EXPECT_FALSE(std::filesystem::exists(LearnedPath()));
}

TEST_F(CorrectionLearningTest, DamagedFilesAreNotUsedAndLearningStartsAnew) {
  const CorrectionStats learned = LearnOne();
  Restart();
  for (const std::string& path : {MomentsPath(), LearnedPath()}) {
    Restart([&](EngineOptions&) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      ASSERT_TRUE(file.seekp(200).put('\x7f')) << path;
    });
    if (path == MomentsPath()) {
      EXPECT_EQ(Show().tokens, 0);
      EXPECT_EQ(Show().version, learned.version);  // a correction needs no moments
    } else {
      EXPECT_EQ(Show().version, "");
    }
  }
  LearnOne();
}

TEST_F(CorrectionLearningTest, FrozenItStaysAsItIs) {
  const CorrectionStats learned = LearnOne();
  const auto frozen = engine_->UpdateCorrection(CorrectionAction::kFreeze);
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  EXPECT_EQ(frozen->learning, LearningState::kFrozen);
  for (int i = 0; i < 5; ++i) AskOverNewChunks();
  const CorrectionStats after = Settle();
  EXPECT_EQ(after.version, learned.version);
  EXPECT_EQ(after.tokens, frozen->tokens);
  EXPECT_EQ(engine_->UpdateCorrection(CorrectionAction::kLearn)->learning, LearningState::kOn);
  AskOverNewChunks();
  EXPECT_GT(Settle().tokens, after.tokens);

  Restart([](EngineOptions& options) { options.learn_correction = "frozen"; });
  EXPECT_EQ(Show().learning, LearningState::kFrozen);
  EXPECT_NE(Show().version, "");
}

TEST_F(CorrectionLearningTest, ResetForgets) {
  LearnOne();
  const auto reset = engine_->UpdateCorrection(CorrectionAction::kReset);
  ASSERT_TRUE(reset.ok()) << reset.status();
  EXPECT_EQ(reset->version, "");
  EXPECT_EQ(reset->tokens, 0);
  EXPECT_EQ(reset->learning, LearningState::kOn);
  EXPECT_FALSE(std::filesystem::exists(LearnedPath()));
  EXPECT_FALSE(std::filesystem::exists(MomentsPath()));
  EXPECT_EQ(Ask({Text(1), Text(0)}).correction, "");
  LearnOne();
}

TEST_F(CorrectionLearningTest, OffMeansOff) {
  const CorrectionStats learned = LearnOne();
  for (const auto& off : std::vector<std::function<void(EngineOptions&)>>{
           [](EngineOptions& options) { options.learn_correction = "off"; },
           [](EngineOptions& options) { options.correction = "none"; }}) {
    Restart(off);
    EXPECT_EQ(Show().learning, LearningState::kOff);
    EXPECT_EQ(Show().version, "");
    EXPECT_EQ(Ask({Text(1), Text(0)}).correction, "");
    const absl::Status refused = engine_->UpdateCorrection(CorrectionAction::kLearn).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                AnyOf(HasSubstr("learn-correction is off"), HasSubstr("correction is none")));
  }
  Restart();
  EXPECT_EQ(Show().version, learned.version);
}

}  // namespace
}  // namespace kvblend
