// What is noted of one request of a load, as its client saw it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvblend::server::cli {

/// Times are seconds since the measurement began. Latencies count from when the request was planned, not from
/// when it was sent: where this program was late, that is part of what its user would have waited.
struct LoadRecord {
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  int mode = 0;  // index of the modes
  int conversation = 0;
  int turn = 0;
  double planned = 0;
  double sent = 0;
  double first_token = kNever;
  double ended = kNever;
  absl::Status status = {};
  std::vector<double> gaps =
      {};  // seconds between one arrival of text and the next; guessed tokens arrive together
  int32_t output_tokens = 0;

  int32_t prompt_tokens = 0;
  int32_t exact_tokens = 0;
  int32_t reused_tokens = 0;
  int32_t recomputed_tokens = 0;
  int32_t chunks = 0;
  int32_t chunk_hits = 0;    // that were in the store
  int32_t other_anchor = 0;  // of the hits: computed behind another anchor

  std::string answer_hash = {};  // of its token ids
  bool matches = true;           // what it was held against, if anything

  bool ok() const { return status.ok(); }
  double ttft() const { return first_token - planned; }
  double latency() const { return ended - planned; }
  /// Mean time per token after the first; 0 where there is one token.
  double seconds_per_token() const {
    return output_tokens > 1 ? (ended - first_token) / (output_tokens - 1) : 0;
  }
};

}  // namespace kvblend::server::cli
