// One accepted request on its way through the scheduler: what it does on the engine thread, and how it ends.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "engine/api/request.h"
#include "engine/blend/reuse_plan.h"
#include "engine/schedule/cancellation.h"
#include "engine/schedule/job_queue.h"
#include "engine/serve/prefetcher.h"
#include "engine/serve/sequences/decoding_sequence.h"
#include "engine/serve/sequences/prompt_runner.h"

namespace kvblend {

inline schedule::Priority PriorityOf(const Caller& caller) {
  switch (caller.priority) {
    case Priority::kHigh:
      return schedule::Priority::kHigh;
    case Priority::kLow:
      return schedule::Priority::kLow;
    case Priority::kNormal:
      break;
  }
  return schedule::Priority::kNormal;
}

/// Advance is called until it returns false, and so again while the task is unfinished(). If that is never
/// going to begin, Abandon is called in its place. If decoding() is set at the end, a DecodeBatch carries
/// that sequence on. Whichever of them ends the task tells its observer how.
class Task {
 public:
  explicit Task(Caller caller) : caller_(std::move(caller)), cancellation_(ToSteady(caller_.deadline)) {
    TraceUntilNow("accept");
  }
  virtual ~Task() = default;

  /// On the engine thread: does a unit of work, a part of a layer. Returns whether there is more to do now.
  virtual bool Advance(PromptRunner& runner) = 0;
  /// On any thread; instead of Advance.
  virtual void Abandon(const absl::Status& status) = 0;

  /// Whether the task has more to do when others have had their turn.
  virtual bool unfinished() const { return false; }

  /// How much longer it should take until Advance returns false, as far as that is known; infinite: Advance
  /// has nothing to do but wait for what is on its way.
  virtual double predicted_seconds_left() const { return 0; }

  /// How many tokens decoding() may have, prompt and answer together; 0: it will never be set.
  virtual int32_t max_decoding_tokens() const { return 0; }
  /// How many tokens' KV needs pages until Advance returns false.
  virtual int32_t max_working_tokens() const { return 0; }

  /// How many pages that running answers hold already it would begin with, if it began now.
  virtual int64_t PagesToShare(PromptRunner& /*runner*/) const { return 0; }

  /// At the end: what a DecodeBatch has to carry on and end; null: the task has ended.
  virtual DecodingSequence* decoding() { return nullptr; }

  /// Entries that the store should get once the response is out. Valid at the end.
  virtual std::vector<blend::MissingEntry> TakeMissing() { return {}; }

  double SecondsSinceSubmission() const { return absl::ToDoubleSeconds(SteadyNow() - submitted_); }

  /// Called before the task is submitted: what it costs at the least, for sure and unless others spare it
  /// more, and how long its texts are.
  void SetDemand(double least_seconds, double queue_seconds, int64_t tokens) {
    least_seconds_ = least_seconds;
    queue_seconds_ = queue_seconds;
    tokens_ = tokens;
  }
  double least_seconds() const { return least_seconds_; }
  /// What its next turn should take, right or wrong by a factor, and what those behind it should
  /// (schedule::Job).
  virtual double queue_seconds() const { return queue_seconds_; }
  virtual double continued_seconds() const { return 0; }
  int64_t tokens() const { return tokens_; }

  /// Called before the task is submitted: keeps what its prompt will look up on its way into memory.
  void HoldPrefetch(std::shared_ptr<Prefetch> prefetch) { prefetch_ = std::move(prefetch); }

  const Caller& caller() const { return caller_; }
  schedule::Cancellation& cancellation() { return cancellation_; }
  const schedule::Cancellation& cancellation() const { return cancellation_; }

 protected:
  /// For when the prompt has looked up its chunks, or will not do so any more.
  void DropPrefetch() { prefetch_.reset(); }

  /// The request leaves the queue, for its turn or for ever. Returns how long it was there. Called once.
  double LeaveQueue() {
    const double seconds = SecondsSinceSubmission();
    TraceUntilNow("queue");
    if (caller_.on_dequeued != nullptr) caller_.on_dequeued(seconds);
    return seconds;
  }

  /// What happens to the request as a whole: each call ends what went on until now. Nothing without a trace.
  void TraceUntilNow(const char* name) {
    if (RequestTrace* trace = caller_.trace.get(); trace != nullptr) {
      const int64_t now = trace->Now();
      trace->Add({.track = RequestTrace::Track::kRequest, .name = name, .begin = traced_until_, .end = now});
      traced_until_ = now;
    }
  }
  void TraceWhole() {
    if (RequestTrace* trace = caller_.trace.get(); trace != nullptr) {
      trace->Add(
          {.track = RequestTrace::Track::kRequest, .name = "request", .begin = 0, .end = traced_until_});
    }
  }

 private:
  const Caller caller_;
  schedule::Cancellation cancellation_;
  std::shared_ptr<Prefetch> prefetch_;
  double least_seconds_ = 0, queue_seconds_ = 0;
  int64_t tokens_ = 0;
  const absl::Time submitted_ = SteadyNow();
  int64_t traced_until_ = 0;  // by the trace's clock
};

}  // namespace kvblend
