// One accepted request on its way through the scheduler: what it does on the engine thread, and how it ends.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/api/request.h"
#include "engine/blend/reuse_plan.h"
#include "engine/schedule/cancellation.h"
#include "engine/serve/decoding_sequence.h"
#include "engine/serve/prefetcher.h"
#include "engine/serve/prompt_runner.h"

namespace kvblend {

/// Run is called once, and again as long as the task is unfinished; Abandon instead of a Run that does not
/// come. What is then decoding() is carried on in a DecodeBatch. The one that ends the task tells the
/// observer how.
class Task {
 public:
  explicit Task(Caller caller) : caller_(std::move(caller)), cancellation_(caller_.deadline) {}
  virtual ~Task() = default;

  /// On the engine thread.
  virtual void Run(PromptRunner& runner) = 0;
  /// On any thread; instead of Run.
  virtual void Abandon(const absl::Status& status) = 0;

  /// Whether Run has more to do and wants another turn.
  virtual bool unfinished() const { return false; }

  /// Before and after Run: the tokens of decoding(), the prompt's and all that may come; 0: it will have
  /// none.
  virtual int32_t max_decoding_tokens() const { return 0; }

  /// After Run: what a DecodeBatch is to carry on and to end; null: Run has ended the task.
  virtual DecodingSequence* decoding() { return nullptr; }

  /// Entries that the store should get once the response is out. Valid after Run.
  virtual std::vector<blend::MissingEntry> TakeMissing() { return {}; }

  /// Before it is submitted: what its prompt will look up, on its way into memory.
  void HoldPrefetch(std::shared_ptr<Prefetch> prefetch) { prefetch_ = std::move(prefetch); }

  const Caller& caller() const { return caller_; }
  schedule::Cancellation& cancellation() { return cancellation_; }

 protected:
  /// The prompt has what it needs, or needs nothing any more.
  void DropPrefetch() { prefetch_.reset(); }

  double SecondsSinceSubmission() const { return absl::ToDoubleSeconds(absl::Now() - submitted_); }

 private:
  const Caller caller_;
  schedule::Cancellation cancellation_;
  std::shared_ptr<Prefetch> prefetch_;
  const absl::Time submitted_ = absl::Now();
};

}  // namespace kvblend
