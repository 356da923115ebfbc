// Sends chunks to be stored: in batches, a few of them at once, so that the engine always has the next one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/cli/cancellation.h"
#include "server/cli/client.h"
#include "server/cli/precompute/call_gate.h"

namespace kvblend::server::cli {

struct ChunkToPut {
  std::string text;
  std::string label;
  int64_t stored_bytes = 0;
  int64_t input_bytes = 0;  // its share of the corpus, for progress
};

/// Add and Finish are for one thread; on_stored is called on others, one call at a time.
class PutQueue {
 public:
  using OnStored = std::function<void(const v1::PutChunkProgress& progress, const ChunkToPut& chunk)>;
  struct Options {
    v1::PutChunksRequest request;  // all but chunks and labels
    int max_in_flight = 2;
  };

  /// Ends with kCancelled once `cancellation` is requested. Batches go through `gate`, again if refused.
  /// All three must outlive it.
  PutQueue(Client& client, Cancellation& cancellation, CallGate& gate, Options options, OnStored on_stored);
  /// Gives up what has not been sent, and stops the gate if there is something; waits for what has.
  ~PutQueue();
  PutQueue(const PutQueue&) = delete;
  PutQueue& operator=(const PutQueue&) = delete;

  /// Waits while enough is on its way. The first error of any batch, or kCancelled.
  absl::Status Add(ChunkToPut chunk);
  /// Sends what is left and waits for everything.
  absl::Status Finish();
  /// The first error so far.
  absl::Status status() const;

 private:
  using Batch = std::vector<ChunkToPut>;

  absl::Status Enqueue();
  void Work();
  absl::Status Send(const Batch& batch);
  void Fail(const absl::Status& status);

  Client& client_;
  CallGate& gate_;
  const Options options_;
  const OnStored on_stored_;
  Batch batch_;  // being filled
  size_t batch_bytes_ = 0;

  absl::Mutex on_stored_mutex_;  // held while on_stored_ is called
  mutable absl::Mutex mutex_;
  std::deque<Batch> waiting_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Cancellation::Listener on_cancel_;
  std::vector<std::thread> workers_;
};

}  // namespace kvblend::server::cli
