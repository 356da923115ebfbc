// The layer-wise pipeline: how far ahead of computing layers are asked for, and that no entry is left half
// way.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <thread>

#include "tests/support/backend_decorator.h"
#include "tests/unit/blend/lower_tier_fixture.h"

namespace kvblend {
namespace {

/// Tells at every layer that is placed how far the reads have come.
class WatchesLoads final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  std::function<void()> on_load;

 protected:
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    if (on_load) on_load();
    return BackendDecorator::DoKvLoad(stream, plan, rope, k, v, pages);
  }
};

class WaitingTest : public LowerTierBlendFixture {};

// Whoever waits gives his turns up: somebody else's prompt gets to its end meanwhile, and this one to the
// same one as ever.
TEST_P(WaitingTest, APromptThatWaitsForASlowTierHoldsNobodyUp) {
  Restart();
  StoreAll(chunks_);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kNone}) {
    Restart();
    const std::vector<float> expected = Prefill(layout_, With(policy)).logits;
    Restart();
    disk_->HoldReads(true);
    const auto waiting = runner_->Begin(layout_, With(policy), "");
    ASSERT_TRUE(waiting.ok()) << waiting.status();
    const auto step = [&](PromptPrefill& prefill) {
      const absl::StatusOr<bool> done = prefill.Step(KeepRunning);
      EXPECT_TRUE(done.ok()) << done.status();
      return !done.ok() || *done;
    };
    for (int i = 0; i < 3; ++i) ASSERT_FALSE(step(**waiting));
    EXPECT_EQ((*waiting)->predicted_seconds_left(), std::numeric_limits<double>::infinity());
    const absl::Status gone = absl::CancelledError("gone");
    EXPECT_EQ((*waiting)->Step([&] { return gone; }).status(), gone);
    FullPrefill(layout_);
    ASSERT_FALSE(step(**waiting));
    disk_->HoldReads(false);
    disk_->DeliverAll();
    while (!step(**waiting)) {
    }
    EXPECT_EQ((*waiting)->TakePrompt().logits, expected);
  }
  runner_.reset();
}

// The next read comes when the prompt has given its turn up for want of it, so who waits within a turn waits
// for ever.
TEST_P(WaitingTest, NoStepWaitsLongerThanATurn) {
  Restart();
  StoreAll(chunks_);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone}) {
    SCOPED_TRACE(static_cast<int>(policy));
    Restart();
    const std::vector<float> expected = Prefill(layout_, With(policy)).logits;
    Restart();
    disk_->HoldReads(true);
    const auto prompt = runner_->Begin(layout_, With(policy), "");
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    int waits = 0;
    while (true) {
      int asked = 0;
      const absl::StatusOr<bool> done = (*prompt)->Step(
          [&] { return ++asked > 5 ? absl::CancelledError("it waits within its turn") : absl::OkStatus(); });
      ASSERT_TRUE(done.ok()) << done.status();
      if (*done) break;
      if ((*prompt)->predicted_seconds_left() < std::numeric_limits<double>::infinity()) continue;
      ASSERT_TRUE(disk_->Deliver()) << "nothing that it could wait for";
      ++waits;
    }
    EXPECT_GT(waits, 2);
    EXPECT_EQ((*prompt)->TakePrompt().logits, expected);
    disk_->HoldReads(false);
    disk_->DeliverAll();
  }
  runner_.reset();
}

INSTANTIATE_TEST_SUITE_P(Backends, WaitingTest, testing::Values("reference", "cpu"));

class PipelineTest : public LowerTierBlendFixture {
 protected:
  static constexpr int kEntries = 4;  // the anchor and three chunks

  std::unique_ptr<kernels::Backend> MakeBackend() override {
    auto backend = std::make_unique<WatchesLoads>(kernels::CreateReferenceBackend());
    backend_ = backend.get();
    return backend;
  }
  void SetUp() override {
    LowerTierBlendFixture::SetUp();
    Restart(2);
    StoreAll(chunks_);
    disk_->read_fault = [this](const ChunkKey&, int32_t layer) {
      absl::MutexLock lock(&mutex_);
      ++reads_;
      deepest_layer_ = std::max(deepest_layer_, layer);
      return absl::OkStatus();
    };
  }
  void TearDown() override { runner_.reset(); }

  /// Nothing in host memory.
  void Restart(int32_t depth) {
    LowerTierBlendFixture::Restart({.load_pipeline_depth = depth}, byte_budget_);
    absl::MutexLock lock(&mutex_);
    reads_ = 0;
    deepest_layer_ = -1;
  }
  int reads() {
    absl::MutexLock lock(&mutex_);
    return reads_;
  }
  int32_t num_layers() const { return runtime_->config.num_layers; }
  std::vector<ChunkKey> Keys() const {
    std::vector<ChunkKey> keys;
    for (const Tokens& chunk : chunks_) keys.push_back(AddressOf(anchor_, chunk).key);
    return keys;
  }
  /// What is in host memory is there to the last layer.
  void ExpectNothingLeftHalfWay() {
    for (const ChunkKey& key : Keys()) {
      const absl::StatusOr<ChunkInfo> info = chunk_store_->Stat("", key);
      ASSERT_TRUE(info.ok());
      if (info->tier != Tier::kHostMemory) continue;
      const auto handle = store::LookupOne(*chunk_store_, key);
      ASSERT_TRUE(handle.has_value());
      EXPECT_EQ(handle->tier(), Tier::kHostMemory) << "layers are missing, and nobody has asked for them";
    }
  }

  int64_t byte_budget_ = int64_t{256} << 20;
  WatchesLoads* backend_ = nullptr;
  absl::Mutex mutex_;
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t deepest_layer_ ABSL_GUARDED_BY(mutex_) = -1;
};

TEST_P(PipelineTest, WhileALayerComputesTheNextOnesUpToTheDepthAreAskedFor) {
  for (const Policy policy : {Policy::kNone, Policy::kQuery}) {
    for (const int32_t depth : {0, 1, 2, 3, 100}) {
      SCOPED_TRACE(testing::Message() << Name(policy) << ", depth " << depth);
      Restart(depth);
      int loads = 0;
      backend_->on_load = [&] {
        const int32_t layer = loads++ / kEntries;
        const int32_t ahead = depth == 0 ? num_layers() : depth;
        absl::MutexLock lock(&mutex_);
        EXPECT_EQ(deepest_layer_, std::min(layer + ahead, num_layers() - 1));
        EXPECT_EQ(reads_, kEntries * (deepest_layer_ + 1));
      };
      Prefill(layout_, With(policy, 0.3));
      backend_->on_load = nullptr;
      EXPECT_EQ(loads, kEntries * num_layers());
      EXPECT_EQ(reads(), kEntries * num_layers());
    }
  }
}

TEST_P(PipelineTest, TheDepthChangesNoAnswer) {
  const PrefilledPrompt expected = Prefill(layout_, With(Policy::kQuery, 0.3));
  for (const int32_t depth : {0, 1, 3}) {
    Restart(depth);
    EXPECT_EQ(Prefill(layout_, With(Policy::kQuery, 0.3)).logits, expected.logits);
  }
}

TEST_P(PipelineTest, APlanThatIsDroppedReadsNothingAndLeavesNothing) {
  {
    const blend::ReusePlan plan = Plan(layout_, With(Policy::kQuery));
    ASSERT_TRUE(plan.spans[1].entry.has_value());
    EXPECT_GT(chunk_store_->Stats().entries, 0);
  }
  Restart(1);
  {
    const blend::ReusePlan plan = Plan(layout_, With(Policy::kQuery));
    EXPECT_EQ(chunk_store_->Stats().entries, kEntries);
  }
  EXPECT_EQ(reads(), 0);
  EXPECT_EQ(chunk_store_->Stats().entries, 0);
  EXPECT_EQ(chunk_store_->Stats().bytes, 0);
}

TEST_P(PipelineTest, APromptThatStopsHalfWayLeavesWholeEntries) {
  for (int stop_after = 0; stop_after < num_layers(); ++stop_after) {
    SCOPED_TRACE(stop_after);
    Restart(1);
    int asked = 0;
    const auto prompt = runner_->Prefill(layout_, With(Policy::kNone), "", [&] {
      return asked++ < stop_after ? absl::OkStatus() : absl::CancelledError("gone");
    });
    EXPECT_EQ(prompt.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(reads(), kEntries * num_layers());
    ExpectNothingLeftHalfWay();
  }
}

// One prompt is half way when another finds its entries: it reads on by itself.
TEST_P(PipelineTest, APromptAsksForWhatAnotherHasNotAskedForYet) {
  Restart(1);
  const blend::ReusePlan first = Plan(layout_, With(Policy::kNone));
  for (const blend::PlannedSpan& span : first.spans) {
    if (span.entry.has_value()) span.entry->AskForLayer(0);
  }
  EXPECT_EQ(reads(), kEntries);
  const PrefilledPrompt second = Prefill(layout_, With(Policy::kNone));
  EXPECT_EQ(reads(), kEntries * num_layers());
  first.reads->AskForAll();
  EXPECT_EQ(reads(), kEntries * num_layers());  // none twice
  EXPECT_EQ(second.logits, Prefill(layout_, With(Policy::kNone)).logits);
}

TEST_P(PipelineTest, WhoeverNeedsALayerThatNobodyAskedForAsksForIt) {
  Restart(1);
  store::PromptReads reads_of_nobody(chunk_store_->NewPrompt());
  const auto handle = store::LookupOne(*chunk_store_, Keys()[0], &reads_of_nobody);
  ASSERT_TRUE(handle.has_value());
  EXPECT_EQ(reads(), 0);
  EXPECT_TRUE(handle->AcquireLayer(2).ok());
  EXPECT_EQ(reads(), 1);
}

// A lookup that belongs to no prompt prefetches.
TEST_P(PipelineTest, WithoutAPromptAllLayersAreAskedForAtOnce) {
  Restart(1);
  { const auto handle = store::LookupOne(*chunk_store_, Keys()[0]); }
  EXPECT_EQ(reads(), num_layers());
  ExpectNothingLeftHalfWay();
}

// Prompts that come, stop and fail at random, on several threads, with too little memory for all.
TEST_P(PipelineTest, ManyThreadsLeaveNothingHalfWay) {
  for (uint32_t round = 0; round < 3; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << round);
    byte_budget_ = round == 0 ? int64_t{256} << 20 : int64_t{60} << 10;
    Restart(1);
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([this, seed = 10 * round + thread] {
        std::mt19937 random(seed);
        const std::vector<ChunkKey> keys = Keys();
        for (int i = 0; i < 200; ++i) {
          store::PromptReads reads(chunk_store_->NewPrompt());
          const auto handles = chunk_store_->Lookup(keys, random() % 4 == 0 ? nullptr : &reads);
          const int32_t until = static_cast<int32_t>(random() % (num_layers() + 1));
          for (int32_t layer = 0; layer < until; ++layer) {
            const bool asks_ahead = random() % 2 == 0 && layer + 1 < num_layers();
            for (const auto& handle : handles) {
              if (handle.has_value() && asks_ahead) handle->AskForLayer(layer + 1);
            }
            for (const auto& handle : handles) {
              if (handle.has_value() && random() % 8 != 0) {
                EXPECT_TRUE(handle->AcquireLayer(layer).ok());
              }
            }
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ExpectNothingLeftHalfWay();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
