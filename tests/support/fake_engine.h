// An engine whose every event a test decides: for testing what stands on top of the engine.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "engine/store/chunk_store.h"

namespace kvblend::testing {

/// What every submitted request has, whatever it asks for.
class FakeHandle : public RequestHandle {
 public:
  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
  }
  /// False when nothing was cancelled within a minute.
  bool WaitUntilCancelled() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), absl::Minutes(1));
  }
  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  absl::Notification finished;

 private:
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

/// The test plays the engine's thread: it calls the observer, and ends with Finish.
template <typename Request, typename Observer>
class FakeCall : public FakeHandle {
 public:
  FakeCall(Request request, std::shared_ptr<Observer> observer)
      : request(std::move(request)), observer(std::move(observer)) {}

  /// Calls the observer's OnDone(arguments...), drops the observer and counts as finished for Drain.
  template <typename... Arguments>
  void Finish(Arguments&&... arguments) {
    observer->OnDone(std::forward<Arguments>(arguments)...);
    observer = nullptr;
    finished.Notify();
  }

  const Request request;
  std::shared_ptr<Observer> observer;
};

using FakeGenerate = FakeCall<GenerateRequest, GenerateObserver>;
using FakeScore = FakeCall<ScoreRequest, ScoreObserver>;
using FakePutChunks = FakeCall<PutChunksRequest, PutChunksObserver>;

/// Thread-safe.
class FakeEngine : public Engine {
 public:
  /// `lower`: tiers below its chunk store.
  explicit FakeEngine(std::vector<std::unique_ptr<store::LowerTier>> lower = {});

  // What Engine does: accepts every request, unless told otherwise, and leaves it to the test.
  absl::StatusOr<std::shared_ptr<RequestHandle>> Generate(
      GenerateRequest request, std::shared_ptr<GenerateObserver> observer) override;
  absl::StatusOr<std::shared_ptr<RequestHandle>> Score(ScoreRequest request,
                                                       std::shared_ptr<ScoreObserver> observer) override;
  absl::StatusOr<std::shared_ptr<RequestHandle>> PutChunks(
      PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) override;
  ChunkCatalog& chunks() override { return *chunk_store_; }
  store::ChunkStore& chunk_store() { return *chunk_store_; }
  /// Finds every chunk on disk, with a token for each of its bytes.
  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(PrefetchChunksRequest request) override;
  /// One chunk for every chunk_tokens bytes, no overlap; of a text that goes on, whole ones only.
  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override;
  absl::StatusOr<int32_t> CountTokens(std::string_view text) override;
  /// Does what is asked; learning is on at first.
  absl::StatusOr<CorrectionStats> UpdateCorrection(CorrectionAction action) override;
  const EngineInfo& info() const override { return info_; }
  EngineStats Stats() const override;
  /// Waits until the test has finished every request accepted; at the deadline cancels them, and waits on.
  absl::Status Drain(absl::Time deadline) override;

  /// Requests are refused with `status` from now on, or accepted again when it is OK.
  void RefuseWith(absl::Status status);

  /// The next request accepted that was not returned before; null when none comes within a minute.
  std::shared_ptr<FakeGenerate> NextGenerate() { return Next(&generates_); }
  std::shared_ptr<FakeScore> NextScore() { return Next(&scores_); }
  std::shared_ptr<FakePutChunks> NextPutChunks() { return Next(&puts_); }

  /// Stores a chunk of `num_tokens` tokens; `seed` makes its key.
  ChunkKey StoreChunk(std::string_view tenant_namespace, int32_t seed, int32_t num_tokens,
                      const std::string& label = "");

  const absl::Notification& draining() const { return draining_; }

 private:
  template <typename Call>
  using Waiting = std::deque<std::shared_ptr<Call>>;  // for Next

  template <typename Call, typename Request, typename Observer>
  absl::StatusOr<std::shared_ptr<RequestHandle>> Accept(Waiting<Call>* waiting, Request request,
                                                        std::shared_ptr<Observer> observer);
  template <typename Call>
  std::shared_ptr<Call> Next(Waiting<Call>* waiting) {
    absl::MutexLock lock(&mutex_);
    const auto has_one = [waiting] { return !waiting->empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_one), absl::Minutes(1))) return nullptr;
    std::shared_ptr<Call> call = waiting->front();
    waiting->pop_front();
    return call;
  }

  const std::unique_ptr<store::ChunkStore> chunk_store_;
  EngineInfo info_;
  absl::Notification draining_;

  mutable absl::Mutex mutex_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  CorrectionStats correction_ ABSL_GUARDED_BY(mutex_) = {.version = "c0ffee", .learning = LearningState::kOn};
  Waiting<FakeGenerate> generates_ ABSL_GUARDED_BY(mutex_);
  Waiting<FakeScore> scores_ ABSL_GUARDED_BY(mutex_);
  Waiting<FakePutChunks> puts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FakeHandle>> accepted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::testing
