// A server whose times are known, on a clock that jumps from event to event: all in the test's own thread.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/schedule/clock.h"
#include "tests/unit/cli/fake_calls.h"

namespace kvblend::server::cli {

/// Whoever waits is what makes time pass.
class SimulatedClock final : public schedule::Clock {
 public:
  absl::Time Now() override { return now_; }
  void Wait(absl::CondVar&, absl::Mutex& mutex, absl::Time deadline) override {
    if (events_.empty() || events_.begin()->first > deadline) {
      now_ = std::max(now_, deadline);
      return;
    }
    auto event = events_.extract(events_.begin());
    now_ = std::max(now_, event.key());
    mutex.Unlock();
    event.mapped()();
    mutex.Lock();
  }
  void At(absl::Time time, std::function<void()> event) { events_.emplace(time, std::move(event)); }
  void Advance(absl::Duration duration) { now_ += duration; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::multimap<absl::Time, std::function<void()>> events_;
};

/// Prefills one prompt at a time, in order, for `prefill` each; tokens then come every `token`, whatever else
/// goes on.
class SimulatedServer : public FakeCalls {
 public:
  explicit SimulatedServer(SimulatedClock& clock) : clock_(clock) {}

  std::function<absl::Duration(const v1::GenerateRequest&)> prefill = [](const auto&) {
    return absl::Seconds(1);
  };
  absl::Duration token = absl::Milliseconds(10);
  absl::Duration one_answer;  // above 0: answers end one after the other, at least so long each
  int max_waiting = 1 << 30;
  absl::Duration slow_to_accept;  // how long Generate holds up its caller
  int cancelled = 0;
  int in_flight = 0, most_in_flight = 0;

  Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                   std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override {
    generated.push_back(request);
    deadlines.push_back(caller.deadline);
    clock_.Advance(slow_to_accept);
    const absl::Time begin = std::max(clock_.Now(), free_);
    if (begin - clock_.Now() > max_waiting * prefill(request)) return absl::ResourceExhaustedError("full");
    most_in_flight = std::max(most_in_flight, ++in_flight);
    free_ = begin + prefill(request);
    auto handle = std::make_shared<SimulatedHandle>(*this, sink);
    const int32_t tokens = request.sampling().max_tokens();
    clock_.At(free_, [handle, request] {
      if (!handle->sink) return;
      handle->sink->OnEvent(PromptEvent(request));
      handle->sink->OnEvent(TextEvent("", {}));  // the beginning of a character
      handle->sink->OnEvent(TextEvent("a", {1}));
    });
    for (int i = 1; i < tokens; ++i) {
      clock_.At(free_ + i * token, [handle] {
        if (handle->sink) handle->sink->OnEvent(TextEvent("b", {2}));
      });
    }
    last_end_ = std::max(last_end_ + one_answer, free_ + (tokens - 1) * token);
    clock_.At(one_answer > absl::ZeroDuration() ? last_end_ : free_ + (tokens - 1) * token,
              [handle] { handle->End(absl::OkStatus()); });
    return handle;
  }

 private:
  struct SimulatedHandle : RequestHandle {
    SimulatedHandle(SimulatedServer& server, std::shared_ptr<EventSink<v1::GenerateEvent>> sink)
        : server(server), sink(std::move(sink)) {}
    void Cancel() override {
      if (sink) ++server.cancelled;
      End(absl::CancelledError("cancelled by the client"));
    }
    void End(const absl::Status& status) {
      if (!sink) return;
      --server.in_flight;
      std::exchange(sink, nullptr)->OnDone(status);
    }
    SimulatedServer& server;
    std::shared_ptr<EventSink<v1::GenerateEvent>> sink;
  };

  SimulatedClock& clock_;
  absl::Time free_ = absl::InfinitePast();
  absl::Time last_end_ = absl::InfinitePast();
};

}  // namespace kvblend::server::cli
