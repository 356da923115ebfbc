// The figures of a measurement: many records summed up.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/cli/load/load_record.h"

namespace kvblend::server::cli {

/// NaN where there were no values.
struct LatencyQuantiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};
LatencyQuantiles QuantilesOf(absl::Span<const double> values);

/// What an answer must keep to be a good one, in seconds; infinite: anything will do.
struct ServiceLevel {
  double ttft = LoadRecord::kNever;               // time to the first token
  double seconds_per_token = LoadRecord::kNever;  // mean of the answer's tokens after the first
  bool MetBy(const LoadRecord& record) const;
};

/// What became of the requests of one mode.
struct LoadSummary {
  int64_t requests = 0;    // planned
  int64_t unfinished = 0;  // of them: were running or had not begun when the measurement was stopped
  int64_t answered = 0;
  std::map<std::string, int64_t> errors;  // by the name of the code
  // Those that are neither what a load may end with (RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED) nor this
  // program's doing (CANCELLED).
  int64_t failures = 0;
  absl::Status first_failure;
  LatencyQuantiles ttft;  // these four: of what was answered
  LatencyQuantiles inter_token;
  LatencyQuantiles seconds_per_token;
  LatencyQuantiles latency;
  LatencyQuantiles rejection;  // from planned to refused, of RESOURCE_EXHAUSTED
  double answers_per_second = 0;
  double tokens_per_second = 0;  // generated
  double goodput = 0;            // answers per second that met the service level
  double hit_rate = 0;           // chunks that were in the store
  double other_anchor_rate = 0;  // chunks that were, but computed behind another anchor
  double exact_share = 0;        // of prompt tokens: reused as a prefix
  double recomputed_share = 0;   // of the tokens reused inexactly
  double late_p99 = 0;           // from planned to sent: this program's own part
  int64_t mismatches = 0;        // answers that differ from their references
};

/// `unfinished`: planned requests that are not among the records. `seconds`: how long it took. Answers that
/// ended later than that do not count for what was reached per second.
LoadSummary SummarizeLoad(absl::Span<const LoadRecord> records, int mode, double seconds,
                          const ServiceLevel& level, int64_t unfinished = 0);

/// Whether at most 5% of the requests had their first token later than `limit` or never: p95 within it,
/// counting failures.
bool TtftWithin(absl::Span<const LoadRecord> records, int mode, double limit);
/// How many of so many requests those 5% are.
int64_t AllowedLate(int64_t requests);

}  // namespace kvblend::server::cli
