// Puts of chunks onto a slow disk: they wait for it without keeping the engine thread.
#include "engine/serve/put_chunks_task.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/engine_recorder.h"
#include "tests/unit/blend/lower_tier_fixture.h"

namespace kvblend {
namespace {

constexpr double kWaits = std::numeric_limits<double>::infinity();

class PutChunksTaskTest : public LowerTierBlendFixture {
 protected:
  void SetUp() override {
    LowerTierBlendFixture::SetUp();
    disk_->write_fault = [this](const ChunkKey&) {
      may_write_.WaitForNotification();
      return write_status_;
    };
    Restart();
    PutChunksRequest request;
    request.chunks.resize(chunks_.size());
    task_ = std::make_unique<PutChunksTask>(std::move(request), anchor_, chunks_,
                                            /*seconds_per_token=*/0.5, recorder_);
  }
  void TearDown() override {
    if (!may_write_.HasBeenNotified()) may_write_.Notify();
    task_.reset();
    runner_.reset();
    chunk_store_.reset();
  }

  /// As the scheduler does, until the turn is over or the task waits. Returns whether it is over.
  bool RunTurn() {
    while (task_->Advance(*runner_)) {
      if (task_->predicted_seconds_left() == kWaits) return false;
    }
    return true;
  }

  absl::Notification may_write_;
  absl::Status write_status_;
  std::shared_ptr<test_support::PutRecorder> recorder_ = std::make_shared<test_support::PutRecorder>();
  std::unique_ptr<PutChunksTask> task_;
};

TEST_P(PutChunksTaskTest, WaitsForASlowDiskWithoutTheEngineThread) {
  // The first chunk's turn ends while it is being written; the second one's waits for that.
  ASSERT_TRUE(RunTurn());
  EXPECT_TRUE(task_->unfinished());
  EXPECT_TRUE(recorder_->progress.empty());
  EXPECT_EQ(task_->queue_seconds(), 0.5 * static_cast<double>(chunks_[1].size()));
  size_t tokens_behind = 0;
  for (size_t i = 2; i < chunks_.size(); ++i) tokens_behind += chunks_[i].size();
  EXPECT_EQ(task_->continued_seconds(), 0.5 * static_cast<double>(tokens_behind));
  ASSERT_FALSE(RunTurn());
  EXPECT_TRUE(recorder_->progress.empty());
  EXPECT_TRUE(task_->Advance(*runner_)) << "a turn of it is short, and changes nothing";
  EXPECT_EQ(task_->predicted_seconds_left(), kWaits);

  may_write_.Notify();
  while (!RunTurn() || task_->unfinished()) continue;  // whose last turn may wait for the disk, finished
  ASSERT_TRUE(recorder_->Wait().status.ok()) << recorder_->status;
  ASSERT_EQ(recorder_->progress.size(), chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const PutChunkProgress& progress = recorder_->progress[i];
    EXPECT_EQ(progress.index, static_cast<int32_t>(i));
    EXPECT_EQ(progress.done, static_cast<int32_t>(i) + 1);
    EXPECT_EQ(progress.num_tokens, static_cast<int32_t>(chunks_[i].size()));
    EXPECT_TRUE(progress.durable);
  }
}

TEST_P(PutChunksTaskTest, ACancelledOneWaitsForNoDisk) {
  ASSERT_TRUE(RunTurn());
  ASSERT_FALSE(RunTurn());
  task_->cancellation().Cancel();
  while (task_->unfinished()) ASSERT_TRUE(RunTurn());
  EXPECT_EQ(recorder_->Wait().status.code(), absl::StatusCode::kCancelled);
  // What was stored is told, and that it has not reached the disk.
  ASSERT_FALSE(recorder_->progress.empty());
  EXPECT_FALSE(recorder_->progress[0].durable);
}

TEST_P(PutChunksTaskTest, OneThatIsAbandonedBetweenTwoTurnsTellsWhatIsStored) {
  ASSERT_TRUE(RunTurn());
  ASSERT_TRUE(recorder_->progress.empty());
  task_->Abandon(absl::DeadlineExceededError("late"));
  EXPECT_EQ(recorder_->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(recorder_->progress.size(), 1u);
  EXPECT_EQ(recorder_->progress[0].index, 0);
  EXPECT_EQ(recorder_->progress[0].num_tokens, static_cast<int32_t>(chunks_[0].size()));
  EXPECT_FALSE(recorder_->progress[0].already_present);
  EXPECT_FALSE(recorder_->progress[0].durable);
}

TEST_P(PutChunksTaskTest, AChunkThatCannotBeWrittenIsNotWaitedFor) {
  write_status_ = absl::UnavailableError("the disk is gone");
  may_write_.Notify();
  while (!RunTurn() || task_->unfinished()) continue;  // whose last turn may wait for the disk, finished
  ASSERT_TRUE(recorder_->Wait().status.ok()) << recorder_->status;
  ASSERT_EQ(recorder_->progress.size(), chunks_.size());
  for (const PutChunkProgress& progress : recorder_->progress) EXPECT_FALSE(progress.durable);
}

INSTANTIATE_TEST_SUITE_P(Backends, PutChunksTaskTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
