// The learned correction of stored KV (docs/algorithm.md, "Learned corrections") as clients see and steer it.
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
  kShow,    // nothing
  kFreeze,  // learn no more
  kLearn,   // go on learning
  kReset,  // forget what was learned; the correction that the engine was started with, if any, is in force again
};

struct CorrectionStats {
  std::string version = {};  // of the correction in force; empty: none
  LearningState learning = LearningState::kOff;
  bool learned = false;  // the one in force was learned while serving

  // What was learned from so far, restarts included.
  int64_t tokens = 0;            // pairs of stored and fresh KV
  int64_t fitted_chunks = 0;     // whose pairs are fitted
  int64_t kept_back_chunks = 0;  // whose pairs judge the fits

  // Since start.
  int64_t fits = 0;            // tried
  int64_t fits_applied = 0;    // those that were better, and came into force
  int64_t waiting_chunks = 0;  // now: chunks to learn from that wait

  // What replicas that share chunks tell each other of what they learn from.
  bool shared = false;            // they do
  int64_t replicas_found = 0;     // now: others whose moments fits take
  int64_t replicas_merged = 0;    // whose moments the last fit had
  int64_t moments_published = 0;  // since start: times that its own moments were left for others
  int64_t moments_refused = 0;    // since start: of others, because they were damaged, foreign or out of date
  int64_t sharing_failures = 0;   // since start: times that they could not be written or read

  // Per layer, of the chunks kept back, those of other replicas in the last fit among them, as of that fit; empty before
  // there are enough: mean squared deviation of stored KV from what full prefill computes, relative to the latter's mean
  // square.
  std::vector<double> deviation_before = {};  // as it is stored
  std::vector<double> deviation_after = {};   // with the correction in force
};

}  // namespace kvblend
