#include "engine/kv/moments_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/kv/atomic_file.h"
#include "engine/kv/learner_file.h"
#include "tests/unit/kv/learner_pairs.h"

namespace kvblend::kv {
namespace {

using testing::HasSubstr;

const std::vector<std::vector<int32_t>> kPrompts = {{0, 3, 7, 8, 9}, {0, 2, 5, 5}, {0, 1, 2}};

class MomentsCheckpointTest : public testing::Test {
 protected:
  MomentsCheckpointTest() { std::filesystem::remove(path_); }
  ~MomentsCheckpointTest() override { std::filesystem::remove(path_); }

  MomentsCheckpoint Checkpoint(const std::vector<std::vector<int32_t>>& prompts = kPrompts,
                               int64_t fitted = 2, LearnerOptions options = SmallLearner()) const {
    return MomentsCheckpoint(path_, options, CheckpointPrompts::Of(prompts, fitted));
  }
  /// One with so many prompts.
  LearnerState State(int64_t fitted, int64_t kept_back) const {
    LearnerState state =
        MomentsCheckpoint("", SmallLearner(), CheckpointPrompts::Of(kPrompts, 2)).Restore().value();
    state.fitted_chunks = fitted;
    state.kept_back_chunks = kept_back;
    return state;
  }
  void ExpectRefused(const MomentsCheckpoint& checkpoint, std::string_view why) const {
    const absl::Status status = checkpoint.Restore().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::AllOf(HasSubstr(path_), HasSubstr(why)));
  }

  const std::string path_ = testing::TempDir() + "moments_checkpoint_test.moments";
};

TEST_F(MomentsCheckpointTest, BeginsWithNothingAndComesBack) {
  LearnerState state = Checkpoint().Restore().value();
  EXPECT_EQ(state.fitted_chunks + state.kept_back_chunks, 0);
  ASSERT_EQ(state.fitted.size(), SmallLearner().num_layers);
  EXPECT_EQ(state.fitted.front().count(), 0);
  EXPECT_EQ(state.fitted.front().kind(), PairMoments::Kind::kFull);

  const std::vector<float> stored(3 * SmallLearner().channels(), 1.0f), fresh(stored.size(), 1.5f);
  const std::vector<int32_t> tokens = {0, 1, 2};
  const std::vector<float> weights(3, 1.0f);
  for (PairMoments& layer : state.fitted) {
    layer.Add({.stored = stored, .fresh = fresh, .tokens = tokens, .weights = weights});
  }
  state.fitted_chunks = 1;
  ASSERT_TRUE(Checkpoint().Save(state).ok());
  const absl::StatusOr<LearnerState> back = Checkpoint().Restore();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->fitted_chunks, 1);
  EXPECT_EQ(back->fitted.back().count(), 3);
  EXPECT_EQ(EncodeLearner(SmallLearner(), *back), EncodeLearner(SmallLearner(), state));
}

TEST_F(MomentsCheckpointTest, WithoutAPathNothingIsWritten) {
  const MomentsCheckpoint none("", SmallLearner(), CheckpointPrompts::Of(kPrompts, 2));
  EXPECT_TRUE(none.Save(State(1, 0)).ok());
  EXPECT_EQ(none.Restore().value().fitted_chunks, 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(MomentsCheckpointTest, RefusesOtherPromptsAndOtherModels) {
  ASSERT_TRUE(Checkpoint().Save(State(1, 0)).ok());
  auto changed = kPrompts;
  changed[2][2] = 3;
  ExpectRefused(Checkpoint(changed), "of other prompts");
  ExpectRefused(Checkpoint(kPrompts, 1), "of other prompts");
  ExpectRefused(Checkpoint({{0, 3, 7}, {8, 9}, {0, 2, 5, 5}, {0, 1, 2}}), "of other prompts");
  LearnerOptions other = SmallLearner();
  other.model_fingerprint[5] ^= 1;
  ExpectRefused(Checkpoint(kPrompts, 2, other), "another version, model");
  other = SmallLearner();
  other.anchoring = Anchoring::kIsolated;
  ExpectRefused(Checkpoint(kPrompts, 2, other), "anchoring");
  EXPECT_TRUE(Checkpoint().Restore().ok());
}

TEST_F(MomentsCheckpointTest, RefusesCountsThatNoRunHas) {
  for (const auto& [fitted, kept_back] : {std::pair{3, 0}, {2, 2}, {1, 1}}) {
    ASSERT_TRUE(Checkpoint().Save(State(fitted, kept_back)).ok());
    ExpectRefused(Checkpoint(), "allowed: up to 2, and then up to 1");
  }
  ASSERT_TRUE(Checkpoint().Save(State(2, 1)).ok());
  EXPECT_TRUE(Checkpoint().Restore().ok());
}

TEST_F(MomentsCheckpointTest, RefusesDamage) {
  ASSERT_TRUE(Checkpoint().Save(State(1, 0)).ok());
  std::string bytes = ReadWholeFile(path_, "").value();
  bytes[150] ^= 1;
  ASSERT_TRUE(ReplaceFile(path_, bytes).ok());
  ExpectRefused(Checkpoint(), "damaged");
  ASSERT_TRUE(ReplaceFile(path_, "no such file").ok());
  ExpectRefused(Checkpoint(), "no moments of a correction");
}

}  // namespace
}  // namespace kvblend::kv
