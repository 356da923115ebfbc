// The stream between engine and gRPC, with a sender in gRPC's place: so that ThreadSanitizer sees all of it.
#include "server/grpc/event_stream.h"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"

namespace kvblend::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

grpc::ByteBuffer Message(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  EXPECT_TRUE(message.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

class CountingHandle : public RequestHandle {
 public:
  void Cancel() override { ++cancels; }
  std::atomic<int> cancels{0};
};

// Records what is started; the test answers.
class ManualSender : public MessageSender {
 public:
  void Send(const grpc::ByteBuffer* message) override { sent.push_back(Text(*message)); }
  void FinishCall(grpc::Status status) override { finished.push_back(std::move(status)); }
  CancelCall NewCancelCall() override {
    return [this](const absl::Status& status) { cancelled.push_back(status); };
  }
  std::vector<std::string> sent;
  std::vector<grpc::Status> finished;
  std::vector<absl::Status> cancelled;
};

// As one of a unary call.
class HoldingSender : public ManualSender {
 public:
  void Send(const grpc::ByteBuffer* message) override {
    ManualSender::Send(message);
    stream->OnHeld();
  }
  std::shared_ptr<EventStream> stream;
};

class EventStreamTest : public ::testing::Test {
 protected:
  std::shared_ptr<EventStream> NewStream(absl::Time deadline = absl::InfiniteFuture()) {
    auto stream = std::make_shared<EventStream>(
        streams_, deadline, [this](const absl::Status& status) { closed_.push_back(status.code()); });
    stream->Attach(&sender_);
    return stream;
  }

  // A single one may have 10 bytes waiting.
  const std::shared_ptr<OpenStreams> streams_ = std::make_shared<OpenStreams>(
      OpenStreams::Limits{.max_unsent_bytes = 20, .write_timeout = absl::Minutes(1)});
  ManualSender sender_;
  std::vector<absl::StatusCode> closed_;
};

TEST_F(EventStreamTest, SendsOneAtATimeAndFinishesLast) {
  const auto stream = NewStream();
  stream->Push(Message("a"));
  stream->Push(Message("b"));
  EXPECT_THAT(sender_.sent, ElementsAre("a"));
  stream->Close(absl::OkStatus());
  EXPECT_THAT(closed_, ElementsAre(absl::StatusCode::kOk));
  stream->OnSent(true);
  EXPECT_THAT(sender_.sent, ElementsAre("a", "b"));
  EXPECT_THAT(sender_.finished, IsEmpty());
  stream->OnSent(true);
  ASSERT_EQ(sender_.finished.size(), 1u);
  EXPECT_TRUE(sender_.finished[0].ok());
}

TEST_F(EventStreamTest, WhoIsToldOfTheEndIsToldBeforeTheCallIsFinished) {
  EventStream* sending = nullptr;
  size_t finished = 1;
  const auto stream =
      std::make_shared<EventStream>(streams_, absl::InfiniteFuture(), [&](const absl::Status&) {
        sending->OnSent(true);  // as another thread may say at this moment
        finished = sender_.finished.size();
      });
  sending = stream.get();
  stream->Attach(&sender_);
  stream->Push(Message("a"));
  stream->Close(absl::OkStatus());
  EXPECT_EQ(finished, 0u);
  EXPECT_EQ(sender_.finished.size(), 1u);
}

TEST_F(EventStreamTest, ACancelledCallCancelsTheRequestAndWaitsForItsEnd) {
  const auto stream = NewStream();
  const auto handle = std::make_shared<CountingHandle>();
  stream->SetHandle(handle);
  stream->Push(Message("a"));
  stream->Push(Message("b"));
  stream->OnCancel();
  EXPECT_EQ(handle->cancels, 1);
  stream->OnSent(false);
  stream->Push(Message("c"));
  EXPECT_THAT(sender_.sent, ElementsAre("a"));
  EXPECT_THAT(sender_.finished, IsEmpty());
  stream->Close(absl::CancelledError(""));
  EXPECT_THAT(closed_, ElementsAre(absl::StatusCode::kCancelled));
  EXPECT_EQ(sender_.finished.size(), 1u);
}

TEST_F(EventStreamTest, ARequestSubmittedForACallThatHasGoneIsCancelledAtOnce) {
  const auto stream = NewStream();
  stream->OnCancel();
  const auto handle = std::make_shared<CountingHandle>();
  stream->SetHandle(handle);
  EXPECT_EQ(handle->cancels, 1);
}

TEST_F(EventStreamTest, TheHandleIsDroppedWithTheEnd) {
  const auto stream = NewStream();
  auto handle = std::make_shared<CountingHandle>();
  stream->SetHandle(handle);
  stream->Close(absl::OkStatus());
  stream->OnCancel();
  EXPECT_EQ(handle->cancels, 0);
  EXPECT_EQ(handle.use_count(), 1);
}

TEST_F(EventStreamTest, TooMuchUnsentEndsTheCall) {
  const auto stream = NewStream();
  const auto handle = std::make_shared<CountingHandle>();
  stream->SetHandle(handle);
  stream->Push(Message("12345"));  // being sent: not unsent any more
  stream->Push(Message("1234567890"));
  EXPECT_EQ(handle->cancels, 0);
  stream->Push(Message("x"));
  EXPECT_EQ(handle->cancels, 1);
  stream->Close(absl::CancelledError(""));
  EXPECT_THAT(sender_.finished, IsEmpty());
  stream->OnSent(true);
  EXPECT_THAT(sender_.sent, ElementsAre("12345"));
  ASSERT_EQ(sender_.finished.size(), 1u);
  EXPECT_EQ(sender_.finished[0].error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(sender_.finished[0].error_message(), HasSubstr("more than 10 bytes"));
  EXPECT_THAT(closed_, ElementsAre(absl::StatusCode::kResourceExhausted));
}

TEST_F(EventStreamTest, AClientThatDoesNotReadLosesItsCall) {
  const auto stream = NewStream();
  const auto handle = std::make_shared<CountingHandle>();
  stream->SetHandle(handle);
  streams_->EndStuck(absl::Now() + absl::Hours(1));  // nothing is to be read
  stream->Push(Message("12345"));
  stream->Push(Message("678"));
  EXPECT_EQ(streams_->unsent_bytes(), 8u);
  streams_->EndStuck(absl::Now());
  EXPECT_THAT(sender_.cancelled, IsEmpty());
  for (int i = 0; i < 2; ++i) streams_->EndStuck(absl::Now() + absl::Minutes(2));
  ASSERT_EQ(sender_.cancelled.size(), 1u);
  EXPECT_THAT(std::string(sender_.cancelled[0].message()), HasSubstr("not taken for 1m"));
  EXPECT_EQ(handle->cancels, 1);
  stream->OnSent(false);
  stream->OnCancel();
  EXPECT_EQ(streams_->unsent_bytes(), 0u);
  stream->Close(absl::CancelledError(""));
  EXPECT_THAT(closed_, ElementsAre(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(sender_.finished.size(), 1u);
  stream->OnDone();
  streams_->EndStuck(absl::Now() + absl::Hours(1));
  EXPECT_EQ(sender_.cancelled.size(), 1u);
}

TEST_F(EventStreamTest, SoDoesOneThatDoesNotReadTheEnd) {
  const auto stream = NewStream();
  stream->Close(absl::OkStatus());
  ASSERT_EQ(sender_.finished.size(), 1u);
  streams_->EndStuck(absl::Now() + absl::Minutes(2));
  EXPECT_EQ(sender_.cancelled.size(), 1u);
  stream->OnDone();
}

TEST_F(EventStreamTest, AnAnswerThatLeavesWithTheEndHasTheSameBounds) {
  HoldingSender senders[2];
  for (HoldingSender& sender : senders) {
    sender.stream = NewStream();
    sender.stream->Attach(&sender);
  }
  senders[0].stream->Push(Message("12345678901"));
  senders[0].stream->Close(absl::OkStatus());
  EXPECT_THAT(senders[0].sent, ElementsAre("12345678901"));
  ASSERT_EQ(senders[0].finished.size(), 1u);
  EXPECT_TRUE(senders[0].finished[0].ok());
  EXPECT_EQ(streams_->unsent_bytes(), 11u) << "until gRPC is done with it";
  senders[1].stream->Push(Message("123456789012"));
  EXPECT_THAT(senders[1].cancelled, SizeIs(1)) << "both together are too many, and it is the larger one";
  senders[1].stream->Close(absl::OkStatus());
  ASSERT_EQ(senders[1].finished.size(), 1u);
  EXPECT_EQ(senders[1].finished[0].error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  streams_->EndStuck(absl::Now() + absl::Minutes(2));
  ASSERT_EQ(senders[0].cancelled.size(), 1u);
  EXPECT_THAT(std::string(senders[0].cancelled[0].message()), HasSubstr("not taken for 1m"));
  senders[0].stream->OnDone();
  for (HoldingSender& sender : senders) sender.stream = nullptr;
  EXPECT_EQ(streams_->unsent_bytes(), 0u);
}

TEST_F(EventStreamTest, OfManySlowReadersTheOneWithMostIsEnded) {
  ManualSender senders[3];
  std::shared_ptr<EventStream> streams[3];
  for (int i = 0; i < 3; ++i) {
    streams[i] = NewStream();
    streams[i]->Attach(&senders[i]);
    streams[i]->Push(Message("1234"));
  }
  streams[1]->Push(Message("56789"));
  EXPECT_EQ(streams_->unsent_bytes(), 17u);
  streams[0]->Push(Message("567"));
  EXPECT_THAT(senders[1].cancelled, IsEmpty());
  streams[2]->Push(Message("5"));
  ASSERT_EQ(senders[1].cancelled.size(), 1u);
  EXPECT_THAT(std::string(senders[1].cancelled[0].message()),
              HasSubstr("9 bytes of the answer were waiting"));
  EXPECT_EQ(streams_->unsent_bytes(), 16u) << "what is being sent is given up by its sender";
  streams[1]->OnSent(false);
  EXPECT_EQ(streams_->unsent_bytes(), 12u);
  streams[2]->Push(Message("678"));
  EXPECT_THAT(senders[0].cancelled, IsEmpty());
  EXPECT_THAT(senders[2].cancelled, IsEmpty());
  for (std::shared_ptr<EventStream>& stream : streams) stream = nullptr;
  EXPECT_EQ(streams_->unsent_bytes(), 0u);
}

TEST_F(EventStreamTest, WhatIsKeptIsDroppedWhenAllIsSentAndBeforeTheClientIsToldOfTheEnd) {
  const auto stream = NewStream();
  size_t finished = 1;
  stream->KeepUntilSent(std::shared_ptr<void>(&finished, [&](void*) { finished = sender_.finished.size(); }));
  stream->Push(Message("a"));
  stream->Push(Message("b"));
  stream->Close(absl::OkStatus());
  stream->OnSent(true);
  EXPECT_EQ(finished, 1u);
  stream->OnSent(true);
  EXPECT_EQ(finished, 0u);
  EXPECT_EQ(sender_.finished.size(), 1u);
}

TEST_F(EventStreamTest, CancelledByTheDeadlineReadsDeadlineExceeded) {
  const auto close = [this](absl::Time deadline) {
    NewStream(deadline)->Close(absl::CancelledError(""));
    return closed_.back();
  };
  EXPECT_EQ(close(absl::Now() - absl::Seconds(1)), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(close(absl::Now() + absl::Hours(1)), absl::StatusCode::kCancelled);
  EXPECT_EQ(close(absl::InfiniteFuture()), absl::StatusCode::kCancelled);
}

// Answers on a thread of its own, as gRPC does, and cancels at a random moment.
class ThreadedSender : public MessageSender {
 public:
  explicit ThreadedSender(std::shared_ptr<EventStream> stream, uint32_t cancel_after)
      : stream_(std::move(stream)), cancel_after_(cancel_after) {
    stream_->Attach(this);
    thread_ = std::thread([this] { Run(); });
  }
  ~ThreadedSender() override { thread_.join(); }

  void Send(const grpc::ByteBuffer* message) override {
    absl::MutexLock lock(&mutex_);
    ++operations_;
    texts_.push_back(Text(*message));
    due_ = true;
  }
  void FinishCall(grpc::Status) override {
    absl::MutexLock lock(&mutex_);
    ++operations_;
    finished_ = true;
  }

  CancelCall NewCancelCall() override {
    return [](const absl::Status&) {};
  }

  std::vector<std::string> texts() {
    absl::MutexLock lock(&mutex_);
    return texts_;
  }

 private:
  void Run() {
    for (uint32_t answered = 0;; ++answered) {
      {
        absl::MutexLock lock(&mutex_);
        const auto ready = [this] { return due_ || finished_; };
        mutex_.Await(absl::Condition(&ready));
        EXPECT_EQ(operations_, 1) << "one operation at a time";
        if (finished_) return;
        operations_ = 0;
        due_ = false;
      }
      if (answered == cancel_after_) stream_->OnCancel();
      stream_->OnSent(answered < cancel_after_);
    }
  }

  const std::shared_ptr<EventStream> stream_;
  const uint32_t cancel_after_;
  absl::Mutex mutex_;
  std::vector<std::string> texts_;
  int operations_ = 0;
  bool due_ = false;
  bool finished_ = false;
  std::thread thread_;
};

TEST(EventStreamThreadsTest, EndsOnceWhateverTheInterleaving) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> closed{0};
    const auto handle = std::make_shared<CountingHandle>();
    std::vector<std::string> texts;
    {
      auto stream =
          std::make_shared<EventStream>(std::make_shared<OpenStreams>(OpenStreams::Limits()),
                                        absl::InfiniteFuture(), [&closed](const absl::Status&) { ++closed; });
      ThreadedSender sender(stream, random() % 40);
      std::thread engine([stream] {
        for (int i = 0; i < 20; ++i) stream->Push(Message(std::to_string(i)));
        stream->Close(absl::OkStatus());
      });
      stream->SetHandle(handle);
      engine.join();
      stream = nullptr;
      texts = sender.texts();
    }
    EXPECT_EQ(closed, 1);
    EXPECT_LE(handle->cancels, 1);
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], std::to_string(i));
  }
}

}  // namespace
}  // namespace kvblend::server
