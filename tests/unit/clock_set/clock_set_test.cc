// Waits, limits and deadlines where the machine's clock is set meanwhile: this program has one of its own,
// which it sets.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "engine/runtime/cost_measurement.h"
#include "engine/schedule/clock.h"
#include "engine/serve/correction_learning.h"
#include "engine/serve/task.h"
#include "engine/store/redis/redis_tier.h"
#include "engine/store/redis/transport.h"
#include "gtest/gtest.h"
#include "server/access/keyed_access.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/cli/load/load_driver.h"
#include "server/cli/terminal.h"
#include "server/grpc/event_stream.h"
#include "server/main/run_server.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/fake_engine.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"
#include "tests/unit/cli/fake_calls.h"

namespace {
std::atomic<int64_t> g_seconds_ahead = 0, g_seconds_per_look = 0;
}  // namespace

// In the place of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += g_seconds_ahead += g_seconds_per_look;
  return result;
}

namespace kvblend::server {
namespace {

class ClockSetTest : public ::testing::Test {
 protected:
  void TearDown() override { g_seconds_ahead = g_seconds_per_look = 0; }
  static void SetClock(absl::Duration ahead) { g_seconds_ahead = absl::ToInt64Seconds(ahead); }
  /// Whenever somebody looks at it, it is set anew.
  static void SetClockAtEveryLook(absl::Duration ahead) { g_seconds_per_look = absl::ToInt64Seconds(ahead); }
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

TEST_F(ClockSetTest, RedisTheSchedulerAndLearningCountSteadily) {
  const store::RedisTier::Options tier;
  const CorrectionLearning::Options learning;
  const MomentsSharing::Options sharing;
  const store::redis::NodeOptions node;
  schedule::Clock& scheduler = schedule::Clock::System();
  const absl::Time soon = SteadyNow() + absl::Hours(1);
  SetClock(absl::Hours(24));
  EXPECT_LT(tier.now(), soon);
  EXPECT_LT(node.now(), soon);
  EXPECT_LT(scheduler.Now(), soon);
  EXPECT_LT(learning.now(), soon);
  EXPECT_LT(sharing.now(), soon);
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
  EngineCalls calls(&slot, {.engine_options = {}, .max_message_bytes = 0});
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

TEST_F(ClockSetTest, ACancelledCallWasNotLate) {
  NoSender sender;
  absl::Status closed;
  const auto stream = std::make_shared<EventStream>(std::make_shared<OpenStreams>(OpenStreams::Limits()),
                                                    absl::Now() + absl::Hours(1),
                                                    [&](const absl::Status& status) { closed = status; });
  stream->Attach(&sender);
  SetClock(absl::Hours(24));
  stream->Close(absl::CancelledError(""));
  EXPECT_EQ(closed.code(), absl::StatusCode::kCancelled) << closed;
}

TEST_F(ClockSetTest, TheUptimeIsThatOfTheServer) {
  EngineSlot slot;
  EngineCalls calls(&slot, {});
  testing::FakeEngine engine;
  slot.Serve(&engine);
  for (const absl::Duration ahead : {absl::Hours(24), -absl::Hours(24)}) {
    SetClock(ahead);
    const auto info = calls.GetInfo({});
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_GE(info->uptime_seconds(), 0);
    EXPECT_LT(info->uptime_seconds(), 3600);
  }
}

/// Where the log goes: keeps the line that begins with `begin`, and tells when it comes.
class LineSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LineSink(std::string begin, absl::Notification& seen) : begin_(std::move(begin)), seen_(seen) {}
  const std::string& line() const { return line_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line(message.payload.data(), message.payload.size());
    if (!line_.empty() || line.rfind(begin_, 0) != 0) return;
    line_ = std::move(line);
    seen_.Notify();
  }
  void flush_() override {}

  const std::string begin_;
  absl::Notification& seen_;
  std::string line_;
};

TEST_F(ClockSetTest, LoadingTookTheTimeThatItTook) {
  ServerConfig config;
  config.grpc_address = config.http_address = "127.0.0.1:0";
  config.api.address = "none";
  absl::Notification stop;
  const auto sink = std::make_shared<LineSink>("serving ", stop);
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  const auto load = [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    SetClock(absl::Hours(24));
    return std::make_unique<testing::FakeEngine>();
  };
  EXPECT_EQ(RunServer(config, load, stop), 0);
  spdlog::set_default_logger(before);
  const std::string what = "loaded in ";
  const size_t begin = sink->line().find(what);
  ASSERT_NE(begin, std::string::npos) << sink->line();
  const std::string rest = sink->line().substr(begin + what.size());
  double seconds = -1;
  ASSERT_TRUE(absl::SimpleAtod(rest.substr(0, rest.find(' ')), &seconds)) << sink->line();
  EXPECT_GE(seconds, 0);
  EXPECT_LT(seconds, 3600);
}

TEST_F(ClockSetTest, ComputingCostsTheTimeThatItTakes) {
  EngineOptions options;
  options.device = "reference";
  options.model_path = test_support::TemporaryPath("clock_set_test.gguf");
  ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, {}).ok());
  const auto runtime = ModelRuntime::Load(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  SetClockAtEveryLook(absl::Hours(1));
  const auto costs = MeasureCosts(**runtime);
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_LT(costs->place_seconds, 3600);
  for (const blend::PassMeasurement& pass : costs->passes) EXPECT_LT(pass.seconds, 3600);
}

TEST_F(ClockSetTest, ALoadsDeadlinesAreThoseOfTheClockThatTheirCallsGoBy) {
  cli::FakeCalls calls;
  cli::Cancellation cancellation;
  std::vector<cli::Conversation> conversations(1);
  conversations[0].questions = {"Q"};
  conversations[0].output_tokens = {1};
  const std::vector<cli::BenchVariant> modes(1);
  SteadyNow();
  SetClock(absl::Hours(24));
  RunLoad(calls, schedule::Clock::System(), cancellation,
          {.conversations = conversations,
           .modes = modes,
           .mode_indices = {0},
           .tenant_namespace = "n",
           .timeout = absl::Hours(1)},
          {.arrivals = {0}});
  ASSERT_EQ(calls.deadlines.size(), 1u);
  EXPECT_GT(calls.deadlines[0], absl::Now());
  EXPECT_LE(calls.deadlines[0], absl::Now() + absl::Hours(1));
}

TEST_F(ClockSetTest, AProgressBarGoesOn) {
  std::ostringstream out, err;
  cli::Terminal terminal{out, err, /*err_is_terminal=*/false};
  cli::ProgressBar bar(terminal, "Work", /*line_every=*/absl::ZeroDuration());
  bar.Update(1, 10, "");
  SetClock(-absl::Hours(24));
  bar.Update(2, 10, "");
  EXPECT_EQ(err.str(), "Work 1/10\nWork 2/10\n");
  SetClock(absl::Hours(24));
  bar.Update(3, 10, "");
  EXPECT_EQ(err.str(), "Work 1/10\nWork 2/10\nWork 3/10\n") << "no time left that is a guess from the clock";
}

}  // namespace
}  // namespace kvblend::server
