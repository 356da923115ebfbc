// How far a corpus has got: a bar on terminals, a line now and then elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// What has been done so far.
struct CorpusCounts {
  int64_t documents = 0;
  int64_t bad_inputs = 0;
  // Different ones, as the store keeps them: what two documents share is computed, and stored, once.
  int64_t chunks = 0;
  int64_t tokens = 0;
  int64_t stored_bytes = 0;
  int64_t computed_chunks = 0;  // of chunks: the store did not have them
  int64_t computed_tokens = 0;
  double compute_seconds = 0;       // as the engine says
  int64_t input_bytes = 0;          // of the corpus
  int64_t present_input_bytes = 0;  // of input_bytes: for chunks that the store had

  // If a chunk was sent twice at once, the server may answer "already there" before it answers "computed".
  int64_t present_chunks() const { return std::max<int64_t>(chunks - computed_chunks, 0); }
};

/// Thread-safe: while it lives, everything for the terminal goes through it.
class CorpusProgress {
 public:
  using Clock = std::function<absl::Time()>;
  static constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
  static constexpr absl::Duration kLineInterval = absl::Seconds(10);

  CorpusProgress(Terminal& terminal, int64_t total_input_bytes, Clock now = absl::Now);
  ~CorpusProgress();
  CorpusProgress(const CorpusProgress&) = delete;
  CorpusProgress& operator=(const CorpusProgress&) = delete;

  /// Changes the counts, and shows them when it is time.
  void Update(const std::function<void(CorpusCounts&)>& change);
  void Warn(std::string_view message);
  CorpusCounts counts() const;
  /// Since it was made.
  double seconds() const;

 private:
  std::string Describe(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Clear() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double Share() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Terminal& terminal_;
  const int64_t total_input_bytes_;
  const Clock now_;
  const absl::Time start_;
  mutable absl::Mutex mutex_;
  CorpusCounts counts_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_shown_ ABSL_GUARDED_BY(mutex_);
  bool drawn_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvblend::server::cli
