// What every ReadQueue does, whatever it reads with.
#include "engine/store/disk/read_queue.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kFilePages = 64;

std::byte ByteAt(int64_t offset) { return static_cast<std::byte>((offset * 2654435761U) >> 13); }

/// Reads block until told to go on; says when one has begun.
class GatedFile final : public File {
 public:
  absl::StatusOr<int64_t> ReadAt(int64_t, absl::Span<std::byte> out) override {
    if (!began_.HasBeenNotified()) began_.Notify();
    gate_.WaitForNotification();
    std::fill(out.begin(), out.end(), std::byte{7});
    return static_cast<int64_t>(out.size());
  }
  absl::StatusOr<int64_t> WriteAt(int64_t, absl::Span<const std::byte>) override {
    return absl::UnimplementedError("read only");
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return kPage; }
  bool direct() const override { return false; }
  int descriptor() const override { return -1; }
  const std::string& path() const override { return path_; }

  absl::Notification began_;
  absl::Notification gate_;

 private:
  const std::string path_ = "gated";
};

/// absl::BlockingCounter, but with a lock that ThreadSanitizer sees.
class Countdown {
 public:
  explicit Countdown(int count) : left_(count) {}
  void Decrement() {
    absl::MutexLock lock(&mutex_);
    --left_;
  }
  void Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* left) { return *left == 0; }, &left_));
  }

 private:
  absl::Mutex mutex_;
  int left_;
};

/// One outcome.
struct Outcome {
  absl::Notification called;
  absl::Status status;
  std::atomic<int> calls = 0;
  auto Callback() {
    return [this](absl::Status s) {
      status = std::move(s);
      if (++calls == 1) called.Notify();
    };
  }
  absl::Status Wait() {
    called.WaitForNotification();
    return status;
  }
};

class ReadQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && ReadQueue::Create({})->name() != "io_uring") {
      GTEST_SKIP()
          << "the kernel refuses io_uring (a container's seccomp rules, or kernel.io_uring_disabled)";
    }
    std::vector<std::byte> bytes(kFilePages * kPage);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = ByteAt(static_cast<int64_t>(i));
    const std::string path = folder_.path() + "/data";
    {
      const auto file = *PosixFileSystem().Open(path, OpenMode::kCreate);
      ASSERT_TRUE(WriteFully(*file, 0, bytes).ok());
    }
    file_ = *PosixFileSystem().Open(path, OpenMode::kReadDirect);
  }
  /// One thread and one read at a time, so that the order can be seen; or several.
  std::unique_ptr<ReadQueue> Create(int32_t depth, ReadQueue::Options options = {}) {
    options.num_threads = depth;
    options.num_ring_threads = std::min(depth, 2);
    options.depth = depth;
    options.allow_io_uring = GetParam();
    return ReadQueue::Create(options);
  }
  static absl::StatusOr<ReadId> Submit(ReadQueue& queue, const std::shared_ptr<File>& file,
                                       const PageBuffer& buffer, Outcome& outcome, int64_t offset = 0) {
    return queue.Submit({.file = file, .offset = offset, .out = buffer.bytes(), .done = outcome.Callback()});
  }
  static bool IsFilled(absl::Span<const std::byte> bytes, int64_t offset) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != ByteAt(offset + static_cast<int64_t>(i))) return false;
    }
    return true;
  }

  test_support::TemporaryFolder folder_;
  std::shared_ptr<File> file_;
};

TEST_P(ReadQueueTest, ReadsEveryOffsetAndSize) {
  const auto queue = Create(4);
  EXPECT_EQ(queue->name(), GetParam() ? "io_uring" : "threads");
  std::vector<std::unique_ptr<PageBuffer>> buffers;
  std::vector<std::unique_ptr<Outcome>> outcomes;
  std::vector<int64_t> offsets;
  for (int64_t first = 0; first < kFilePages; first += 3) {
    for (int64_t pages = 0; pages <= kFilePages - first; pages += 7) {
      offsets.push_back(first * kPage);
      buffers.push_back(std::make_unique<PageBuffer>(pages * kPage));
      outcomes.push_back(std::make_unique<Outcome>());
      ASSERT_TRUE(queue
                      ->Submit({.file = file_,
                                .offset = first * kPage,
                                .out = buffers.back()->bytes(),
                                .priority = {{ReadFor::kPrompt, static_cast<uint64_t>(pages)}, 0},
                                .done = outcomes.back()->Callback()})
                      .ok());
    }
  }
  for (size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(outcomes[i]->Wait().ok()) << outcomes[i]->status;
    EXPECT_TRUE(IsFilled(buffers[i]->bytes(), offsets[i]));
  }
}

TEST_P(ReadQueueTest, AFileThatEndsIsDataLoss) {
  const auto queue = Create(2);
  const PageBuffer buffer(4 * kPage);
  for (const int64_t offset : {(kFilePages - 2) * kPage, kFilePages * kPage, (kFilePages + 5) * kPage}) {
    Outcome outcome;
    ASSERT_TRUE(Submit(*queue, file_, buffer, outcome, offset).ok());
    EXPECT_TRUE(absl::IsDataLoss(outcome.Wait())) << outcome.status;
  }
  // Also when the end is in the middle of a page.
  const std::string path = folder_.path() + "/odd";
  {
    const auto file = *PosixFileSystem().Open(path, OpenMode::kCreate);
    ASSERT_TRUE(WriteFully(*file, 0, std::vector<std::byte>(2 * kPage + 100)).ok());
  }
  Outcome outcome;
  ASSERT_TRUE(Submit(*queue, *PosixFileSystem().Open(path, OpenMode::kReadDirect), buffer, outcome).ok());
  EXPECT_TRUE(absl::IsDataLoss(outcome.Wait())) << outcome.status;
}

TEST_P(ReadQueueTest, ShortReadsGoOnAndErrorsArePassedOn) {
  const auto queue = Create(1);
  FaultyFileSystem faulty(PosixFileSystem());
  faulty.SetMaxTransfer(1000);
  const std::shared_ptr<File> file = *faulty.Open(folder_.path() + "/data", OpenMode::kRead);
  const PageBuffer buffer(8 * kPage);
  Outcome pieces;
  ASSERT_TRUE(Submit(*queue, file, buffer, pieces, kPage).ok());
  EXPECT_TRUE(pieces.Wait().ok());
  EXPECT_TRUE(IsFilled(buffer.bytes(), kPage));
  faulty.FailAll(FaultyFileSystem::Operation::kRead, absl::InternalError("broken"));
  Outcome broken;
  ASSERT_TRUE(Submit(*queue, file, buffer, broken).ok());
  EXPECT_EQ(broken.Wait(), absl::InternalError("broken"));
}

TEST_P(ReadQueueTest, LowerPrioritiesGoFirst) {
  const auto queue = Create(1);
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer buffer(kPage);
  Outcome first;
  ASSERT_TRUE(Submit(*queue, gated, buffer, first).ok());
  gated->began_.WaitForNotification();

  std::vector<ReadPriority> expected;
  // A prefetch goes behind prompts, also those that come later.
  for (const Reader reader : {Reader{ReadFor::kPrompt, 1}, Reader{ReadFor::kPrompt, 3},
                              Reader{ReadFor::kPrefetch, 0}, Reader{ReadFor::kPrefetch, 2}}) {
    for (int32_t layer = 0; layer < 4; ++layer) {
      expected.push_back({reader, layer});
      expected.push_back({reader, layer});  // another chunk of the prompt
    }
  }
  std::vector<ReadPriority> shuffled = expected;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(3));
  absl::Mutex mutex;
  std::vector<ReadPriority> order;
  Countdown left(static_cast<int>(shuffled.size()));
  std::vector<std::unique_ptr<PageBuffer>> buffers;
  for (const ReadPriority& priority : shuffled) {
    buffers.push_back(std::make_unique<PageBuffer>(kPage));
    const auto note = [&, priority](const absl::Status&) {
      {
        absl::MutexLock lock(&mutex);
        order.push_back(priority);
      }
      left.Decrement();
    };
    const absl::Span<std::byte> out = buffers.back()->bytes();
    ASSERT_TRUE(queue->Submit({.file = file_, .out = out, .priority = priority, .done = note}).ok());
  }
  gated->gate_.Notify();
  left.Wait();
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(order, expected);
}

TEST_P(ReadQueueTest, CancelledReadsHearOfItOnceAndLeaveTheBuffer) {
  const auto queue = Create(1);
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer running_buffer(kPage);
  const PageBuffer waiting_buffer(kPage);
  Outcome running;
  Outcome waiting;
  Outcome after;
  const ReadId running_id = *Submit(*queue, gated, running_buffer, running);
  gated->began_.WaitForNotification();
  std::fill(waiting_buffer.bytes().begin(), waiting_buffer.bytes().end(), std::byte{1});
  const ReadId waiting_id = *Submit(*queue, file_, waiting_buffer, waiting);
  EXPECT_TRUE(queue->Cancel(waiting_id));
  EXPECT_TRUE(queue->Cancel(running_id));
  EXPECT_TRUE(queue->Cancel(running_id));
  EXPECT_EQ(running.calls, 0) << "the buffer is still being read into";
  gated->gate_.Notify();
  EXPECT_TRUE(absl::IsCancelled(running.Wait()));
  EXPECT_TRUE(absl::IsCancelled(waiting.Wait()));
  const ReadId after_id = *Submit(*queue, file_, running_buffer, after);
  EXPECT_TRUE(after.Wait().ok());
  EXPECT_TRUE(IsFilled(running_buffer.bytes(), 0));
  for (const std::byte byte : waiting_buffer.bytes()) ASSERT_EQ(byte, std::byte{1});
  EXPECT_FALSE(queue->Cancel(after_id));
  EXPECT_FALSE(queue->Cancel(running_id));
  EXPECT_FALSE(queue->Cancel(123456));
  EXPECT_EQ(running.calls, 1);
  EXPECT_EQ(waiting.calls, 1);
}

TEST_P(ReadQueueTest, DestructionCancelsWhatWaitsAndWaitsForWhatRuns) {
  auto owner = Create(1);
  ReadQueue* const queue = owner.get();
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer buffer(kPage);
  Outcome running;
  std::vector<std::unique_ptr<Outcome>> waiting;
  ASSERT_TRUE(Submit(*queue, gated, buffer, running).ok());
  gated->began_.WaitForNotification();
  for (int i = 0; i < 10; ++i) {
    waiting.push_back(std::make_unique<Outcome>());
    // What a pipeline does: the end of one read begins the next.
    const auto read_on = [&, i](absl::Status status) {
      queue->Submit({.file = file_, .out = buffer.bytes(), .done = [](const absl::Status&) {}})
          .status()
          .IgnoreError();
      waiting[static_cast<size_t>(i)]->Callback()(std::move(status));
    };
    ASSERT_TRUE(queue->Submit({.file = file_, .out = buffer.bytes(), .done = read_on}).ok());
  }
  std::thread opener([&] { gated->gate_.Notify(); });
  owner.reset();
  opener.join();
  EXPECT_EQ(running.calls, 1);
  for (const auto& outcome : waiting) EXPECT_EQ(outcome->calls, 1);
}

TEST_P(ReadQueueTest, TheQueueIsBounded) {
  const auto queue = Create(1, {.max_waiting = 3});
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer buffer(kPage);
  std::vector<std::unique_ptr<Outcome>> outcomes;
  const auto submit = [&](const std::shared_ptr<File>& file) {
    outcomes.push_back(std::make_unique<Outcome>());
    return Submit(*queue, file, buffer, *outcomes.back()).status();
  };
  ASSERT_TRUE(submit(gated).ok());
  gated->began_.WaitForNotification();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(submit(file_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(submit(file_)));
  EXPECT_EQ(outcomes.back()->calls, 0);
  gated->gate_.Notify();
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(outcomes[i]->Wait().ok());
  ASSERT_TRUE(submit(file_).ok());
  EXPECT_TRUE(outcomes.back()->Wait().ok());
}

TEST_P(ReadQueueTest, WhereTooManyWaitTheLastInOrderGoes) {
  const auto queue = Create(1, {.max_waiting = 3});
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer buffer(kPage);
  Outcome running;
  ASSERT_TRUE(Submit(*queue, gated, buffer, running).ok());
  gated->began_.WaitForNotification();
  std::vector<std::unique_ptr<Outcome>> outcomes;
  std::vector<absl::StatusOr<ReadId>> ids;
  const auto submit = [&](Reader reader) {
    outcomes.push_back(std::make_unique<Outcome>());
    ids.push_back(queue->Submit({.file = file_,
                                 .out = buffer.bytes(),
                                 .priority = {reader, 0},
                                 .done = outcomes.back()->Callback()}));
  };
  submit({ReadFor::kPrefetch, 1});
  submit({ReadFor::kNobody});
  submit({ReadFor::kPrefetch, 2});
  submit({ReadFor::kNobody});  // is no earlier than any
  submit({ReadFor::kPrompt, 9});
  submit({ReadFor::kPut, 9});
  queue->Raise(ids.back().value_or(0), {{ReadFor::kPrompt, 8}, 0});
  submit({ReadFor::kPrompt, 10});
  submit({ReadFor::kPut, 1});  // no longer before the raised one
  gated->gate_.Notify();
  std::vector<int> codes;
  for (size_t i = 0; i < ids.size(); ++i) {
    codes.push_back(ids[i].ok() ? outcomes[i]->Wait().raw_code() : -1);
    EXPECT_TRUE(ids[i].ok() || absl::IsResourceExhausted(ids[i].status())) << ids[i].status();
    EXPECT_EQ(outcomes[i]->calls, ids[i].ok() ? 1 : 0);
  }
  const int dropped = static_cast<int>(absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(codes, (std::vector<int>{dropped, dropped, dropped, -1, 0, 0, 0, -1}));
}

TEST_P(ReadQueueTest, ARaisedReadGoesFirst) {
  const auto queue = Create(1);
  const auto gated = std::make_shared<GatedFile>();
  const PageBuffer buffer(kPage);
  Outcome running;
  ASSERT_TRUE(Submit(*queue, gated, buffer, running).ok());
  gated->began_.WaitForNotification();
  absl::Mutex mutex;
  std::vector<int> order;
  Countdown left(4);
  std::vector<ReadId> ids;
  for (int i = 0; i < 4; ++i) {
    const auto note = [&, i](const absl::Status&) {
      {
        absl::MutexLock lock(&mutex);
        order.push_back(i);
      }
      left.Decrement();
    };
    const ReadPriority priority{{ReadFor::kPrefetch, static_cast<uint64_t>(i)}, 0};
    ids.push_back(*queue->Submit({.file = file_, .out = buffer.bytes(), .priority = priority, .done = note}));
  }
  queue->Raise(ids[3], {{ReadFor::kPrompt, 7}, 0});
  queue->Raise(ids[1], {{ReadFor::kNobody}, 0});  // it is further ahead already
  queue->Raise(ids[2], {{ReadFor::kPut, 1}, 0});
  EXPECT_TRUE(queue->Cancel(ids[2])) << "it is found where it is now";
  queue->Raise(ids[2], {{ReadFor::kPrompt, 1}, 0});
  queue->Raise(123456, {});
  gated->gate_.Notify();
  left.Wait();
  queue->Raise(ids[0], {});
  absl::MutexLock lock(&mutex);
  EXPECT_EQ(order, (std::vector<int>{2, 3, 0, 1})) << "cancelled ones are told first";
}

TEST_P(ReadQueueTest, ManyThreadsReadAndCancel) {
  constexpr int kThreads = 4;
  constexpr int kReads = 200;
  std::atomic<int> num_called = 0;
  std::atomic<int> num_wrong = 0;
  {
    const auto queue = Create(4);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        std::vector<std::unique_ptr<PageBuffer>> buffers;
        Countdown left(kReads);
        for (int i = 0; i < kReads; ++i) {
          const auto pages = static_cast<int64_t>(1 + random() % 4);
          const auto offset = static_cast<int64_t>(random() % (kFilePages - 4)) * kPage;
          buffers.push_back(std::make_unique<PageBuffer>(pages * kPage));
          const absl::Span<std::byte> out = buffers.back()->bytes();
          const absl::StatusOr<ReadId> id = queue->Submit(
              {.file = file_,
               .offset = offset,
               .out = out,
               .priority = {{ReadFor::kPrompt, random() % 10}, static_cast<int32_t>(random() % 10)},
               .done = [&, out, offset](const absl::Status& status) {
                 ++num_called;
                 if (status.ok() ? !IsFilled(out, offset) : !absl::IsCancelled(status)) ++num_wrong;
                 left.Decrement();
               }});
          ASSERT_TRUE(id.ok());
          if (random() % 3 == 0) queue->Cancel(*id);
        }
        left.Wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(num_called, kThreads * kReads);
  EXPECT_EQ(num_wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ReadQueueTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "IoUring" : "Threads"; });

}  // namespace
}  // namespace kvblend::store
