// The learned correction of stored KV (docs/algorithm.md, "Learned corrections") as clients see and
// control it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvblend {

enum class LearningState : uint8_t {
  kOff,     // nothing is learned while serving, and nothing that was learned is applied
  kFrozen,  // what was learned is applied, and stays as it is
  kOn,
};

enum class CorrectionAction : uint8_t {
  kShow,    // change nothing
  kFreeze,  // learn no more; what is in force stays
  kLearn,   // go on learning
  kReset,  // forget what was learned; the correction that the engine was started with, if any, is in force again
};

struct CorrectionStats {
  std::string version = {};  // of the correction in force; empty: none
  LearningState learning = LearningState::kOff;
  bool learned = false;  // whether it was learned while serving, rather than read from a file at the start

  // What was learned from so far, restarts included.
  int64_t tokens = 0;            // tokens of which both stored and fresh KV was seen
  int64_t fitted_chunks = 0;     // chunks that corrections are fitted to
  int64_t kept_back_chunks = 0;  // chunks that are kept back, to judge the fits by

  // Since start.
  int64_t fits = 0;            // fits that were tried
  int64_t fits_applied = 0;    // fits that were better and came into force
  int64_t waiting_chunks = 0;  // at this moment: chunks that wait to be learned from

  // Learning together with other servers (replicas) that share chunks: they exchange moments, which are the
  // sums that fits are made from (engine/kv/moments_messages.h). Counters are since start.
  bool shared = false;            // whether moments are exchanged
  int64_t replicas_found = 0;     // at this moment: other servers whose moments can be used
  int64_t replicas_merged = 0;    // other servers whose moments were in the last fit
  int64_t moments_published = 0;  // times that this server published its own
  int64_t moments_refused = 0;    // moments of others that were damaged, of another model or out of date
  int64_t sharing_failures = 0;   // times that moments could not be written or read

  // Per layer: mean squared deviation of stored KV from what full prefill computes, relative to the mean
  // square of the latter. Measured by the last fit on the chunks kept back, those of other servers included;
  // empty before there are enough.
  std::vector<double> deviation_before = {};  // of KV as it is stored
  std::vector<double> deviation_after = {};   // with the correction in force
};

}  // namespace kvblend
