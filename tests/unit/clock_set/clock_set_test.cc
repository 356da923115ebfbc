// Waits, limits and deadlines where the machine's clock is set meanwhile: this program has one of its own, which it sets.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "engine/schedule/clock.h"
#include "engine/serve/task.h"
#include "engine/store/redis/redis_tier.h"
#include "engine/store/redis/transport.h"
#include "gtest/gtest.h"
#include "server/access/keyed_access.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/grpc/event_stream.h"
#include "tests/support/temporary_folder.h"

namespace {
std::atomic<int64_t> g_seconds_ahead = 0;
}  // namespace

// In the place of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += g_seconds_ahead;
  return result;
}

namespace kvblend::server {
namespace {

class ClockSetTest : public ::testing::Test {
 protected:
  void TearDown() override { g_seconds_ahead = 0; }
  static void SetClock(absl::Duration ahead) { g_seconds_ahead = absl::ToInt64Seconds(ahead); }
};

TEST_F(ClockSetTest, SteadyTimeGoesOnEvenly) {
  const absl::Time begin = SteadyNow();
  const absl::Time deadline = absl::Now() + absl::Hours(1);
  const absl::Time steady = ToSteady(deadline);
  SetClock(absl::Hours(24));
  ASSERT_GE(absl::Now(), deadline) << "the clock was not set";
  EXPECT_LT(SteadyNow(), steady);
  SetClock(-absl::Hours(24));
  EXPECT_GE(SteadyNow(), begin);
  EXPECT_EQ(ToSteady(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(ToSteady(absl::InfinitePast()), absl::InfinitePast());
}

TEST_F(ClockSetTest, WhatWaitsForRedisIsNotHeldUp) {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listening, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listening, 1), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto connection = store::redis::MakeSocketTransport()->Connect(
      {.host = "127.0.0.1", .port = ntohs(address.sin_port)}, SteadyNow() + absl::Minutes(1));
  ASSERT_TRUE(connection.ok()) << connection.status();
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(10);
  SetClock(-absl::Hours(24));
  std::array<std::byte, 1> byte;
  EXPECT_EQ((*connection)->Read(absl::MakeSpan(byte), deadline).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  close(listening);
}

TEST_F(ClockSetTest, RedisAndTheSchedulerCountSteadily) {
  const store::RedisTier::Options tier;
  const store::redis::NodeOptions node;
  schedule::Clock& scheduler = schedule::Clock::System();
  const absl::Time soon = SteadyNow() + absl::Hours(1);
  SetClock(absl::Hours(24));
  EXPECT_LT(tier.now(), soon);
  EXPECT_LT(node.now(), soon);
  EXPECT_LT(scheduler.Now(), soon);
  EXPECT_GE(tier.date(), soon);
}

class NoTask : public Task {
 public:
  using Task::Task;
  bool Advance(PromptRunner&) override { return false; }
  void Abandon(const absl::Status&) override {}
};

TEST_F(ClockSetTest, ARequestKeepsTheTimeThatItWasGiven) {
  Caller caller;
  caller.deadline = absl::Now() + absl::Hours(1);
  const NoTask task(caller);
  SetClock(absl::Hours(24));
  EXPECT_TRUE(task.cancellation().Check().ok()) << task.cancellation().Check();
}

TEST_F(ClockSetTest, ALimitPerMinuteComesBackAsFast) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/keys";
  const NewKey key = MakeKey({.name = "t", .chunk_namespace = "t", .requests_per_minute = 6000}).value();
  std::ofstream(path) << key.line << '\n';
  EngineSlot slot;
  EngineCalls calls(&slot, {.engine_options = {}, .max_message_bytes = 0, .started = absl::Now()});
  const auto access = KeyedAccess::Open(path, &calls).value();
  const std::string shown = "Bearer " + key.key;
  while (access->Admit(shown).ok()) {
  }
  SetClock(-absl::Hours(24));
  const absl::Time patience = SteadyNow() + absl::Minutes(1);
  while (!access->Admit(shown).ok()) ASSERT_LT(SteadyNow(), patience);
}

class NoSender : public MessageSender {
 public:
  void Send(const grpc::ByteBuffer*) override {}
  void FinishCall(grpc::Status) override {}
  CancelCall NewCancelCall() override {
    return [](const absl::Status&) {};
  }
};

TEST_F(ClockSetTest, WhoReadsAnAnswerHasAsLongForIt) {
  NoSender sender;
  const auto stream = std::make_shared<EventStream>(std::make_shared<OpenStreams>(OpenStreams::Limits()),
                                                    absl::InfiniteFuture(), [](const absl::Status&) {});
  stream->Attach(&sender);
  SetClock(absl::Hours(24));
  const absl::Time before = SteadyNow();
  stream->Push(grpc::ByteBuffer());
  EXPECT_GE(stream->SendingSince(), before);
  EXPECT_LE(stream->SendingSince(), SteadyNow());
}

}  // namespace
}  // namespace kvblend::server
