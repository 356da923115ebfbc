#include "server/cli/prompt_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/terminal.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

constexpr size_t kMaxChunkLines = 20;  // what a person still reads

std::string DescribeReuse(const v1::PromptReport& report) {
  if (report.reuse() == v1::REUSE_NOTHING) return "nothing reused";
  if (report.reuse() == v1::REUSE_PREFIX) return "only the exact prefix reused";
  if (report.reused_tokens() + report.recomputed_tokens() == 0) return "nothing to recompute";
  return absl::StrFormat("%s chunks, policy %s, %.1f%% of the inexact tokens recomputed",
                         Name(report.anchoring()), Name(report.policy()), 100 * report.ratio());
}

/// Where a chunk lay, unless in main memory.
std::string DescribeTier(const v1::ChunkReport& chunk) {
  if (chunk.tier() == v1::TIER_UNSPECIFIED || chunk.tier() == v1::TIER_HOST_MEMORY) return "";
  return absl::StrCat(chunk.source() == v1::CHUNK_SOURCE_BYPASSED ? "  left on " : "  from ",
                      Name(chunk.tier()));
}

std::string DescribeLoading(const v1::LoadingReport& loading) {
  std::string line = "loading: ";
  if (loading.mode() == v1::RATIO_MODE_AUTO) {
    absl::StrAppendFormat(&line, "ratio %.2f chosen between %.2f and %.2f", loading.ratio(),
                          loading.ratio_min(), loading.ratio_max());
    if (loading.bypassed_chunks() > 0) {
      absl::StrAppendFormat(&line, ", chunks bypassed: %d", loading.bypassed_chunks());
    }
  } else {
    absl::StrAppendFormat(&line, "ratio %.2f", loading.ratio());
  }
  if (loading.predicted()) {
    absl::StrAppendFormat(
        &line, "; predicted %s (load alone %s, compute alone %s)", HumanSeconds(loading.predicted_seconds()),
        HumanSeconds(loading.predicted_load_seconds()), HumanSeconds(loading.predicted_compute_seconds()));
  } else if (loading.mode() == v1::RATIO_MODE_AUTO) {
    line += "; nothing measured yet to predict from";
  }
  for (const v1::TierRead& read : loading.reads()) {
    absl::StrAppendFormat(&line, "; %s %s", Name(read.tier()), HumanBytes(read.bytes()));
    if (read.bytes_per_second() > 0) {
      absl::StrAppendFormat(&line, " at %s/s", HumanBytes(static_cast<int64_t>(read.bytes_per_second())));
    }
  }
  if (loading.skipped_bytes() > 0) {
    absl::StrAppend(&line, "; out of every window, not loaded: ", HumanBytes(loading.skipped_bytes()));
  }
  return line;
}

std::string DescribeFinish(const v1::GenerateFinished& finished) {
  switch (finished.reason()) {
    case v1::FINISH_REASON_END_OF_TEXT:
      return "end of text";
    case v1::FINISH_REASON_STOP_STRING:
      return absl::StrCat("stop string \"", finished.stop_string(), "\"");
    case v1::FINISH_REASON_MAX_TOKENS:
      return "stopped at --max-tokens";
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "stopped, the context is full";
    default:
      return "ended";
  }
}

}  // namespace

std::vector<std::string> DescribePrompt(const v1::PromptReport& report) {
  std::vector<std::string> lines;
  const std::string kept = report.kept_tokens() == 0
                               ? ""
                               : absl::StrFormat("%d kept (%d of them exact) + ", report.kept_tokens(),
                                                 report.kept_exact_tokens());
  const std::string shared =
      report.shared_tokens() == 0 ? "" : absl::StrFormat(" (%d shared)", report.shared_tokens());
  lines.push_back(
      absl::StrFormat("prompt: %d tokens = %s%d exact%s + %d reused + %d recomputed + %d computed (%s)",
                      report.prompt_tokens(), kept, report.exact_tokens(), shared, report.reused_tokens(),
                      report.recomputed_tokens(), report.computed_tokens(), DescribeReuse(report)));
  for (const v1::ChunkReport& chunk : report.chunks()) {
    if (lines.size() > kMaxChunkLines) {
      lines.push_back(
          absl::StrFormat("  ... %d more chunks", report.chunks().size() - static_cast<int>(kMaxChunkLines)));
      break;
    }
    lines.push_back(absl::StrFormat("  chunk %2d  %-12s %6d tokens, %d computed  %.12s%s", chunk.index() + 1,
                                    Name(chunk.source()), chunk.num_tokens(), chunk.recomputed_tokens(),
                                    chunk.key(), DescribeTier(chunk)));
  }
  if (report.loading().mode() == v1::RATIO_MODE_AUTO || !report.loading().reads().empty()) {
    lines.push_back(DescribeLoading(report.loading()));
  }
  lines.push_back(
      absl::StrFormat("first token: %s = %s queue + %s lookup + %s load + %s select + %s prefill + %s others",
                      HumanSeconds(report.time_to_first_token_seconds()),
                      HumanSeconds(report.queue_seconds()), HumanSeconds(report.lookup_seconds()),
                      HumanSeconds(report.load_seconds()), HumanSeconds(report.select_seconds()),
                      HumanSeconds(report.prefill_seconds()), HumanSeconds(report.others_seconds())));
  return lines;
}

std::string DescribeResult(const v1::GenerateFinished& finished) {
  const int32_t tokens = finished.usage().completion_tokens();
  const double seconds = finished.timings().total_seconds();
  std::string line = absl::StrFormat("answer: %d tokens in %s", tokens, HumanSeconds(seconds));
  // The first token's time is the prompt's; what comes after it is decoding.
  const double decode_seconds = seconds - finished.timings().time_to_first_token_seconds();
  if (tokens > 1 && decode_seconds > 0) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s after the first", (tokens - 1) / decode_seconds);
  }
  absl::StrAppend(&line, ", ", DescribeFinish(finished));
  if (finished.seed() != 0) absl::StrAppend(&line, ", seed ", finished.seed());
  return line;
}

}  // namespace kvblend::server::cli
