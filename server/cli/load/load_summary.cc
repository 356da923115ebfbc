#include "server/cli/load/load_summary.h"

#include <algorithm>

#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

double ShareOf(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                   : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

LatencyQuantiles QuantilesOf(absl::Span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return {.mean = Mean(sorted),
          .p50 = Percentile(sorted, 0.5),
          .p90 = Percentile(sorted, 0.9),
          .p95 = Percentile(sorted, 0.95),
          .p99 = Percentile(sorted, 0.99),
          .max = Percentile(sorted, 1)};
}

bool ServiceLevel::MetBy(const LoadRecord& record) const {
  return record.ok() && record.ttft() <= ttft && record.seconds_per_token() <= seconds_per_token;
}

LoadSummary SummarizeLoad(absl::Span<const LoadRecord> records, int mode, double seconds,
                          const ServiceLevel& level, int64_t unfinished) {
  LoadSummary summary;
  summary.requests = summary.unfinished = unfinished;
  std::vector<double> ttft, gaps, per_token, latency, rejection, late;
  int64_t in_time = 0, good = 0, tokens = 0;
  int64_t chunks = 0, hits = 0, other_anchor = 0, prompt = 0, exact = 0, recomputed = 0, inexact = 0;
  for (const LoadRecord& record : records) {
    if (record.mode != mode) continue;
    ++summary.requests;
    late.push_back(record.sent - record.planned);
    if (!record.ok()) {
      ++summary.errors[absl::StatusCodeToString(record.status.code())];
      if (absl::IsResourceExhausted(record.status)) {
        rejection.push_back(record.latency());
      } else if (!absl::IsDeadlineExceeded(record.status) && !absl::IsCancelled(record.status)) {
        ++summary.failures;
        summary.first_failure.Update(record.status);
      }
      continue;
    }
    ++summary.answered;
    ttft.push_back(record.ttft());
    latency.push_back(record.latency());
    gaps.insert(gaps.end(), record.gaps.begin(), record.gaps.end());
    if (record.output_tokens > 1) per_token.push_back(record.seconds_per_token());
    if (record.ended <= seconds) {
      ++in_time;
      tokens += record.output_tokens;
      good += level.MetBy(record) ? 1 : 0;
    }
    chunks += record.chunks;
    hits += record.chunk_hits;
    other_anchor += record.other_anchor;
    prompt += record.prompt_tokens;
    exact += record.exact_tokens;
    recomputed += record.recomputed_tokens;
    inexact += record.recomputed_tokens + record.reused_tokens;
    summary.mismatches += record.matches ? 0 : 1;
  }
  summary.ttft = QuantilesOf(ttft);
  summary.inter_token = QuantilesOf(gaps);
  summary.seconds_per_token = QuantilesOf(per_token);
  summary.latency = QuantilesOf(latency);
  summary.rejection = QuantilesOf(rejection);
  summary.late_p99 = Percentile(late, 0.99);
  if (seconds > 0) {
    summary.answers_per_second = static_cast<double>(in_time) / seconds;
    summary.tokens_per_second = static_cast<double>(tokens) / seconds;
    summary.goodput = static_cast<double>(good) / seconds;
  }
  summary.hit_rate = ShareOf(hits, chunks);
  summary.other_anchor_rate = ShareOf(other_anchor, chunks);
  summary.exact_share = ShareOf(exact, prompt);
  summary.recomputed_share = ShareOf(recomputed, inexact);
  return summary;
}

int64_t AllowedLate(int64_t requests) { return requests / 20; }

bool TtftWithin(absl::Span<const LoadRecord> records, int mode, double limit) {
  int64_t requests = 0, late = 0;
  for (const LoadRecord& record : records) {
    if (record.mode != mode) continue;
    ++requests;
    late += record.ok() && record.ttft() <= limit ? 0 : 1;
  }
  return late <= AllowedLate(requests);
}

}  // namespace kvblend::server::cli
