// Learning a correction while an engine serves: from prompts with missing chunks to the version in a report.
#include "engine/serve/correction_learning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/kv/correction_file.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/chunk_store.h"
#include "tests/unit/engine/correction_learning_fixture.h"

namespace kvblend {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::SizeIs;

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
  Restart();  // with what learning began with, which is nothing
  EXPECT_EQ(Show().version, learned.version);
}

TEST_F(CorrectionLearningTest, WhatWasLearnedOnTopOfAGivenCorrectionNeedsNoMoments) {
  LearnOne();
  kv::LearnedCorrection given = kv::ReadCorrectionFile(LearnedPath())->correction;
  for (kv::LayerCorrection& layer : given.layers) layer = {};  // leaves all of the deviation
  ASSERT_TRUE(kv::WriteCorrectionFile(folder_ / "given", given).ok());
  const std::string given_version = kv::CorrectionVersion(kv::EncodeCorrection(given));
  const auto with_given = [&](EngineOptions& options) { options.correction = folder_ / "given"; };
  Restart(with_given);
  ASSERT_TRUE(engine_->UpdateCorrection(CorrectionAction::kReset).ok());
  for (int i = 0; i < 60 && !Show().learned; ++i) {
    AskOverNewChunks();
    Settle();
  }
  const CorrectionStats learned = Show();
  ASSERT_TRUE(learned.learned);
  Restart(with_given);
  const auto bytes_of = [](const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  };
  const std::string file = bytes_of(LearnedPath());

  const auto frozen = [&](EngineOptions& options) {
    with_given(options);
    options.learn_correction = "frozen";
  };
  Restart([&](EngineOptions& options) {
    frozen(options);
    std::ofstream(MomentsPath(), std::ios::binary | std::ios::trunc) << "damaged";
  });
  EXPECT_EQ(Show().version, learned.version);
  EXPECT_TRUE(Show().learned);
  EXPECT_EQ(Show().tokens, 0);
  EXPECT_EQ(bytes_of(LearnedPath()), file);

  // The rounding of another chunk format is not what was learned.
  Restart([&](EngineOptions& options) {
    frozen(options);
    options.chunk_format = "int4";
  });
  EXPECT_EQ(Show().version, given_version);
  EXPECT_EQ(bytes_of(LearnedPath()), file);
  Restart(with_given);
  EXPECT_EQ(Show().version, learned.version);
}

/// A correction that does harm, such as one of other texts, does not wait for a fit that beats it.
TEST_F(CorrectionLearningTest, WhatTheChunksKeptBackProveHarmfulIsNotInForceForLong) {
  LearnOne();
  kv::LearnedCorrection harmful = kv::ReadCorrectionFile(LearnedPath())->correction;
  ASSERT_FALSE(harmful.layers[1].empty());
  for (float& value : harmful.layers[1].offset) value += 30;
  ASSERT_TRUE(kv::WriteCorrectionFile(folder_ / "harmful", harmful).ok());
  const std::string version = kv::CorrectionVersion(kv::EncodeCorrection(harmful));
  const auto with_harmful = [&](EngineOptions& options) { options.correction = folder_ / "harmful"; };
  const auto judged = [&] {
    while (Show().deviation_after.empty()) absl::SleepFor(absl::Milliseconds(1));
    return Show();
  };
  Restart([&](EngineOptions& options) {
    with_harmful(options);
    options.learn_correction = "frozen";
  });
  EXPECT_GT(judged().deviation_after[1], judged().deviation_before[1]);
  EXPECT_EQ(judged().version, version);  // frozen it stays as it is

  Restart(with_harmful);
  const CorrectionStats dropped = judged();
  EXPECT_NE(dropped.version, version);
  EXPECT_TRUE(dropped.learned);
  EXPECT_EQ(dropped.deviation_after[1], dropped.deviation_before[1]);
  EXPECT_LT(dropped.deviation_after[2], dropped.deviation_before[2]);  // this layer keeps its correction
  EXPECT_EQ(Ask({Text(1), Text(0), Text(2)}).correction, dropped.version);
  Restart(with_harmful);  // which the file remembers
  EXPECT_EQ(Show().version, dropped.version);
}

/// Of a file that does not say what its learning began with only the moments tell.
TEST_F(CorrectionLearningTest, ACorrectionThatBeganWithSomethingUnknownIsKeptAndNotApplied) {
  const CorrectionStats learned = LearnOne();
  kv::LearnedCorrection older = kv::ReadCorrectionFile(LearnedPath())->correction;
  older.learned.reset();
  const std::string version = kv::CorrectionVersion(kv::EncodeCorrection(older));
  Restart();
  Restart([&](EngineOptions&) { ASSERT_TRUE(kv::WriteCorrectionFile(LearnedPath(), older).ok()); });
  EXPECT_EQ(Show().version, version);
  EXPECT_EQ(Show().tokens, learned.tokens);
  for (const char* learn : {"frozen", "on"}) {
    Restart([&](EngineOptions& options) {
      std::ofstream(MomentsPath(), std::ios::binary | std::ios::trunc) << "damaged";
      options.learn_correction = learn;
    });
    EXPECT_EQ(Show().version, "");
    const auto kept = kv::ReadCorrectionFile(LearnedPath());
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->version, version);
  }
  AskOverNewChunks();
  Settle();
  Restart();  // with new moments, from which it was not learned
  EXPECT_GT(Show().tokens, 0);
  EXPECT_EQ(Show().version, "");
  const auto aside = kv::ReadCorrectionFile(LearnedPath() + ".old");
  ASSERT_TRUE(aside.ok()) << aside.status();
  EXPECT_EQ(aside->version, version);
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

TEST_F(CorrectionLearningTest, ATextIsFittedOrJudgesInAllNamespaces) {
  constexpr int kTenants = 12;
  for (int i = 0; i < kTenants; ++i) {
    GenerateRequest request = Request({Text(0), Text(1)});
    request.caller.tenant_namespace = absl::StrCat("tenant", i);
    request.sampling.max_tokens = 1;
    Generate(std::move(request));
  }
  expected_ = 3 * kTenants;
  const CorrectionStats stats = Settle();
  EXPECT_EQ(stats.fitted_chunks + stats.kept_back_chunks, kTenants);
  EXPECT_EQ(std::min(stats.fitted_chunks, stats.kept_back_chunks), 0);
}

/// Behind an anchor without tokens chunks are stored by themselves, which is not what is learned of anchored
/// ones.
TEST_F(CorrectionLearningTest, ChunksBehindAnEmptyAnchorAreIsolated) {
  const CorrectionStats learned = LearnOne();
  Restart([](EngineOptions& options) { options.chat_format = "plain"; });
  const auto ask = [&](bool anchored) {
    GenerateRequest request = Request({Text(1000 + asked_), Text(1001 + asked_), Text(1002 + asked_)});
    ++asked_;
    if (!anchored) request.prompt.system_text = request.prompt.lead_in = "";
    request.sampling.max_tokens = 1;
    request.blend.policy = Policy::kNone;
    const GenerateRequest again = request;
    Generate(std::move(request));
    expected_ += anchored ? 3 : 2;
    Settle();
    return Generate(again)->prompts.at(0).correction;
  };
  const int64_t before = Show().fitted_chunks + Show().kept_back_chunks;
  EXPECT_EQ(ask(/*anchored=*/false), "");
  EXPECT_EQ(Show().fitted_chunks + Show().kept_back_chunks, before);
  EXPECT_EQ(ask(/*anchored=*/true), learned.version);
}

/// What a prompt computed of some of its chunk's tokens: ones, everywhere. Null: learning has no room for it.
std::shared_ptr<blend::FreshRows> RowsOfOnes(CorrectionLearning& learning, const store::KvFormat& format,
                                             const std::vector<int32_t>& rows) {
  const int64_t layer_rows = format.num_layers * static_cast<int64_t>(rows.size());
  const int64_t values = layer_rows * 2 * format.num_kv_heads * format.head_dim;
  const auto budget = learning.fresh_rows().budget;
  if (!budget->Take(values * static_cast<int64_t>(sizeof(float)))) return nullptr;
  auto fresh = std::make_shared<blend::FreshRows>(rows, values, budget, budget->generation());
  std::fill_n(fresh->data(), values, 1.0f);
  fresh->row_weights.assign(layer_rows, 1.0f);
  return fresh;
}

/// A chunk is stored behind the response, for which there may be time long after the reset.
TEST_F(CorrectionLearningTest, WhatPromptsKeptBeforeAResetOrAFreezeIsNotLearnedFromAfterIt) {
  EngineOptions options = EngineFixture::Options();
  options.model_path = test_support::TemporaryPath("engine_test.gguf");
  const auto runtime = *ModelRuntime::Load(options);
  const auto chunk_store = *store::ChunkStore::Create({.byte_budget = int64_t{64} << 20});
  PromptRunner runner(*runtime, *chunk_store);
  const std::vector<int32_t> tokens(50, 7);
  CorrectionLearning learning(*runtime, {});
  const auto keep = [&] { return RowsOfOnes(learning, runtime->key_space.format, {0, 1, 2, 3}); };
  const auto tokens_with = [&](std::shared_ptr<blend::FreshRows> fresh) {
    auto stored = runner.EnsureStored("", {}, tokens, {}, [] { return absl::OkStatus(); });
    EXPECT_TRUE(stored.ok()) << stored.status();
    learning.Add(std::move(fresh), *std::move(stored->entry), tokens);
    EXPECT_TRUE(learning.Flush(absl::InfiniteFuture()).ok());
    return learning.Stats().tokens;
  };
  EXPECT_EQ(tokens_with(keep()), 4);
  auto before_reset = keep();
  ASSERT_TRUE(learning.Update(CorrectionAction::kReset).ok());
  EXPECT_EQ(tokens_with(std::move(before_reset)), 0);
  auto before_freeze = keep();
  for (const auto action : {CorrectionAction::kFreeze, CorrectionAction::kReset, CorrectionAction::kLearn}) {
    ASSERT_TRUE(learning.Update(action).ok());
  }
  EXPECT_EQ(tokens_with(std::move(before_freeze)), 0);
  auto before_learn = keep();  // that it learns already changes nothing
  ASSERT_TRUE(learning.Update(CorrectionAction::kLearn).ok());
  EXPECT_EQ(tokens_with(std::move(before_learn)), 4);
}

/// Chunks come faster than they are learned from: who resets does not wait for a moment without any.
TEST_F(CorrectionLearningTest, AnUpdateDoesNotWaitForWhatGoesOnComing) {
  EngineOptions options = EngineFixture::Options();
  options.model_path = test_support::TemporaryPath("engine_test.gguf");
  const auto runtime = *ModelRuntime::Load(options);
  const auto chunk_store = *store::ChunkStore::Create({.byte_budget = int64_t{64} << 20});
  PromptRunner runner(*runtime, *chunk_store);
  const std::vector<int32_t> tokens(200, 7);
  CorrectionLearning learning(*runtime, {});
  std::vector<int32_t> rows(2'000);  // of a few tokens, again and again: learning from them takes its time
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i % tokens.size());
  constexpr size_t kMost = 200;
  std::deque<store::ChunkHandle> handles;
  while (handles.size() < kMost) {
    auto stored = runner.EnsureStored("", {}, tokens, {}, [] { return absl::OkStatus(); });
    ASSERT_TRUE(stored.ok()) << stored.status();
    handles.push_back(*std::move(stored->entry));
  }
  std::atomic<bool> updated = false;
  std::atomic<int64_t> added = 0;
  std::thread adder([&] {
    while (!updated && !handles.empty()) {
      if (learning.Stats().waiting_chunks > 20) continue;
      const auto fresh = RowsOfOnes(learning, runtime->key_space.format, rows);
      if (fresh == nullptr) continue;
      learning.Add(fresh, std::move(handles.front()), tokens);
      handles.pop_front();
      ++added;
    }
  });
  while (added < 25) std::this_thread::yield();
  EXPECT_TRUE(learning.Update(CorrectionAction::kReset).ok());
  updated = true;
  adder.join();
  EXPECT_FALSE(handles.empty());
}

/// What waits to be learned from keeps no more of the store than it may.
TEST_F(CorrectionLearningTest, WaitingChunksLeaveTheStoreItsRoom) {
  EngineOptions options = EngineFixture::Options();
  options.model_path = test_support::TemporaryPath("engine_test.gguf");
  const auto runtime = *ModelRuntime::Load(options);
  constexpr int32_t kTokens = 100;
  const store::KvFormat& format = runtime->key_space.format;
  const int64_t chunk_bytes = *store::ChunkKv::SizeBytes(format, kTokens);
  const auto chunk_store = *store::ChunkStore::Create({.byte_budget = 40 * chunk_bytes});
  PromptRunner runner(*runtime, *chunk_store);
  // Stands still in its first fit until all chunks have come.
  absl::Notification stands_still, all_came;
  const std::thread::id adds = std::this_thread::get_id();
  const auto now = [&] {
    if (std::this_thread::get_id() != adds && !all_came.HasBeenNotified()) {
      if (!stands_still.HasBeenNotified()) stands_still.Notify();
      all_came.WaitForNotification();
    }
    return absl::UnixEpoch();
  };
  CorrectionLearning learning(*runtime, {.waiting_bytes = 12 * chunk_bytes, .now = now});
  int32_t chunks = 0;
  const auto add = [&] {
    const std::vector<int32_t> tokens(kTokens, 10 + chunks);
    auto stored = runner.EnsureStored("", {}, tokens, {}, [] { return absl::OkStatus(); });
    ASSERT_TRUE(stored.ok()) << chunks << " chunks: " << stored.status();
    const auto fresh = RowsOfOnes(learning, format, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    ASSERT_NE(fresh, nullptr) << chunks;
    learning.Add(fresh, *std::move(stored->entry), tokens);
    ++chunks;
  };
  while (!stands_still.HasBeenNotified() && !HasFatalFailure()) {
    if (learning.Stats().waiting_chunks < 3) add();
  }
  for (int i = 0; i < 50 && !HasFatalFailure(); ++i) add();
  EXPECT_GE(learning.Stats().waiting_chunks, 50);
  all_came.Notify();
  ASSERT_TRUE(learning.Flush(absl::InfiniteFuture()).ok());
  const CorrectionStats stats = learning.Stats();
  EXPECT_EQ(stats.fitted_chunks + stats.kept_back_chunks, chunks);
}

/// Who stops the server waits for no long fit, and the next process fits as if it had not begun.
TEST_F(CorrectionLearningTest, AFitGivesUpAtTheEndAndIsDueInTheNextProcess) {
  EngineOptions options = EngineFixture::Options();
  options.model_path = test_support::TemporaryPath("engine_test.gguf");
  const auto runtime = *ModelRuntime::Load(options);
  const auto chunk_store = *store::ChunkStore::Create({.byte_budget = int64_t{64} << 20});
  PromptRunner runner(*runtime, *chunk_store);
  const auto add = [&](CorrectionLearning& learning, int32_t token) {
    const std::vector<int32_t> tokens(100, token);
    std::vector<int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto fresh = RowsOfOnes(learning, runtime->key_space.format, rows);
    ASSERT_NE(fresh, nullptr);
    auto stored = runner.EnsureStored("", {}, tokens, {}, [] { return absl::OkStatus(); });
    ASSERT_TRUE(stored.ok()) << stored.status();
    learning.Add(fresh, *std::move(stored->entry), tokens);
  };

  constexpr int32_t kChunks = 30;
  CorrectionStats stopped;
  {
    // The fit's first look at the clock waits for Flush's, and is long behind it.
    absl::Notification flushed;
    const std::thread::id flushes = std::this_thread::get_id();
    const auto now = [&] {
      if (std::this_thread::get_id() == flushes) {
        flushed.Notify();
        return absl::UnixEpoch();
      }
      flushed.WaitForNotification();
      return absl::UnixEpoch() + absl::Hours(1);
    };
    CorrectionLearning learning(*runtime, {.folder = folder_, .now = now});
    for (int32_t i = 0; i < kChunks; ++i) add(learning, 10 + i);
    ASSERT_TRUE(learning.Flush(absl::InfiniteFuture()).ok());
    stopped = learning.Stats();
    EXPECT_EQ(stopped.fits, 0);
    EXPECT_GE(stopped.fitted_chunks, 16);
    EXPECT_GE(stopped.kept_back_chunks, 2);
    EXPECT_EQ(stopped.fitted_chunks + stopped.kept_back_chunks, kChunks);
  }
  CorrectionLearning next(*runtime, {.folder = folder_});
  add(next, 10 + kChunks);
  ASSERT_TRUE(next.Flush(absl::InfiniteFuture()).ok());
  EXPECT_EQ(next.Stats().fits, 1);
  EXPECT_EQ(next.Stats().tokens, stopped.tokens + 100);
}

/// With less memory than before nothing can be learned on top of a map; after a reset there is none.
TEST_F(CorrectionLearningTest, WhereWhatIsInForceCannotBeJudgedAResetHelps) {
  LearnOne();
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  engine_.reset();
  EngineOptions options = EngineFixture::Options();
  options.model_path = test_support::TemporaryPath("engine_test.gguf");
  for (const bool frozen : {false, true}) {
    const auto runtime = *ModelRuntime::Load(options);
    const std::string folder = absl::StrCat(folder_.string(), frozen ? "/frozen" : "/learns");
    std::filesystem::create_directory(folder);
    std::filesystem::copy(LearnedPath(), folder);
    CorrectionLearning learning(*runtime, {.frozen = frozen, .folder = folder, .max_bytes = 1});
    EXPECT_NE(learning.Stats().version, "");
    EXPECT_EQ(learning.Stats().learning, LearningState::kFrozen);
    EXPECT_FALSE(learning.fresh_rows().budget->Take(1));
    EXPECT_EQ(learning.Update(CorrectionAction::kLearn).status().code(),
              absl::StatusCode::kFailedPrecondition);
    const auto reset = learning.Update(CorrectionAction::kReset);
    ASSERT_TRUE(reset.ok()) << reset.status();
    EXPECT_EQ(reset->version, "");
    EXPECT_EQ(reset->learning, frozen ? LearningState::kFrozen : LearningState::kOn);
    const auto learns = learning.Update(CorrectionAction::kLearn);
    ASSERT_TRUE(learns.ok()) << learns.status();
    EXPECT_EQ(learns->learning, LearningState::kOn);
    EXPECT_TRUE(learning.fresh_rows().budget->Take(1));
    learning.fresh_rows().budget->Return(1);
  }
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
