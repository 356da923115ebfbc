#include "server/cli/precompute/put_queue.h"

#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/fake_calls.h"

namespace kvblend::server::cli {
namespace {

class PutQueueTest : public testing::Test {
 protected:
  PutQueue::Options Options(int max_in_flight = 2) {
    PutQueue::Options options;
    options.request.set_lead_in("L");
    options.max_in_flight = max_in_flight;
    return options;
  }
  PutQueue::OnStored Count() {
    return [this](const v1::PutChunkProgress&, const ChunkToPut& chunk) { stored_.push_back(chunk.label); };
  }
  static ChunkToPut Chunk(int number, size_t bytes = 10) {
    return {.text = std::string(bytes, 'x'),
            .label = std::to_string(number),
            .stored_bytes = 1,
            .input_bytes = 1};
  }

  FakeCalls calls_;
  Cancellation cancellation_;
  Client client_{calls_.Lend(), cancellation_};
  const CallGate::Options gate_options_ = {.max_retries = 3, .first_wait = absl::Microseconds(1)};
  CallGate gate_{cancellation_, gate_options_};
  std::vector<std::string> stored_;
};

TEST_F(PutQueueTest, EveryChunkOnceInBatches) {
  PutQueue queue(client_, cancellation_, gate_, Options(), Count());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue.Add(Chunk(i)).ok());
  ASSERT_TRUE(queue.Finish().ok());
  std::vector<std::string> expected;
  for (int i = 0; i < 100; ++i) expected.push_back(std::to_string(i));
  EXPECT_THAT(stored_, testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(calls_.put.size(), 7u);
  for (const v1::PutChunksRequest& request : calls_.put) {
    EXPECT_EQ(request.lead_in(), "L");
    EXPECT_EQ(request.chunks_size(), request.chunk_labels_size());
    EXPECT_LE(request.chunks_size(), 16);
  }
}

TEST_F(PutQueueTest, BatchesOfLongChunksAreSmall) {
  PutQueue queue(client_, cancellation_, gate_, Options(), Count());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(queue.Add(Chunk(i, 20000)).ok());
  ASSERT_TRUE(queue.Finish().ok());
  EXPECT_EQ(calls_.put.size(), 5u);
  EXPECT_EQ(stored_.size(), 5u);
}

TEST_F(PutQueueTest, SoManyAtOnceAndNoMore) {
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  std::latch three_are_under_way(3);
  std::atomic<int> calls = 0;
  calls_.on_put = [&](const v1::PutChunksRequest&) {
    most = std::max(most.load(), ++now);
    if (++calls <= 3) three_are_under_way.arrive_and_wait();
    --now;
    return absl::OkStatus();
  };
  PutQueue queue(client_, cancellation_, gate_, Options(3), Count());
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(queue.Add(Chunk(i)).ok());
  ASSERT_TRUE(queue.Finish().ok());
  EXPECT_EQ(most, 3);
  EXPECT_EQ(stored_.size(), 200u);
}

TEST_F(PutQueueTest, AFullQueueIsTriedAgain) {
  const absl::Status full = WithRetryDelay(absl::ResourceExhaustedError("queue full"), absl::Milliseconds(1));
  std::atomic<int> calls = 0;
  calls_.on_put = [&](const v1::PutChunksRequest&) { return ++calls % 3 == 0 ? absl::OkStatus() : full; };
  PutQueue queue(client_, cancellation_, gate_, Options(1), Count());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(queue.Add(Chunk(i)).ok());
  ASSERT_TRUE(queue.Finish().ok());
  EXPECT_EQ(stored_.size(), 40u);
  calls = 0;
  calls_.on_put = [&](const v1::PutChunksRequest&) {
    ++calls;
    return full;
  };
  PutQueue never(client_, cancellation_, gate_, Options(1), Count());
  ASSERT_TRUE(never.Add(Chunk(1)).ok());
  EXPECT_EQ(never.Finish().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 1 + gate_options_.max_retries);
}

TEST_F(PutQueueTest, WhatNeverFitsIsNotTriedAgain) {
  const absl::Status too_large = absl::ResourceExhaustedError("chunk store: 9 bytes needed; allowed: 8");
  std::atomic<int> calls = 0;
  calls_.on_put = [&](const v1::PutChunksRequest&) {
    ++calls;
    return too_large;
  };
  PutQueue queue(client_, cancellation_, gate_, Options(1), Count());
  ASSERT_TRUE(queue.Add(Chunk(1)).ok());
  EXPECT_EQ(queue.Finish(), too_large);
  EXPECT_EQ(calls, 1);
}

TEST_F(PutQueueTest, TheFirstErrorEndsIt) {
  calls_.on_put = [](const v1::PutChunksRequest& request) {
    return request.chunk_labels(0) == "16" ? absl::UnavailableError("gone") : absl::OkStatus();
  };
  PutQueue queue(client_, cancellation_, gate_, Options(1), Count());
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = queue.Add(Chunk(i));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(queue.Finish().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stored_.size(), 16u);
}

TEST_F(PutQueueTest, CancellationWakesWhoeverWaits) {
  absl::Notification under_way;
  calls_.on_put = [&](const v1::PutChunksRequest&) {
    under_way.Notify();
    absl::Notification cancelled;
    const Cancellation::Listener listener(cancellation_, [&] { cancelled.Notify(); });
    cancelled.WaitForNotification();
    return absl::CancelledError("cancelled");
  };
  PutQueue queue(client_, cancellation_, gate_, Options(1), Count());
  std::thread interrupter([&] {
    under_way.WaitForNotification();
    cancellation_.Request();
  });
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = queue.Add(Chunk(i));  // waits for room
  interrupter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(stored_.empty());
}

TEST_F(PutQueueTest, WithoutFinishNothingIsLeftRunning) {
  PutQueue queue(client_, cancellation_, gate_, Options(), Count());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(queue.Add(Chunk(i)).ok());
}

}  // namespace
}  // namespace kvblend::server::cli
