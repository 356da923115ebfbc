#include "server/cli/prompt_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/engine.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {
namespace {

constexpr size_t kMaxChunkLines = 20;  // what a person still reads

std::string DescribeReuse(const PromptReport& report) {
  switch (report.reuse) {
    case Reuse::kNothing:
      return "nothing reused";
    case Reuse::kPrefix:
      return "only the exact prefix reused";
    case Reuse::kChunks:
      break;
  }
  return absl::StrFormat("%s chunks, policy %s, %.1f%% of the inexact tokens recomputed",
                         Name(report.anchoring), Name(report.policy), 100 * report.ratio);
}

/// Where a chunk lay, unless in main memory.
std::string DescribeTier(const ChunkReport& chunk) {
  if (chunk.tier == Tier::kNone || chunk.tier == Tier::kHostMemory) return "";
  return absl::StrCat(chunk.source == ChunkSource::kBypassed ? "  left on " : "  from ",
                      std::string(Name(chunk.tier)));
}

std::string DescribeLoading(const LoadingReport& loading) {
  std::string line = "loading: ";
  if (loading.mode == RatioMode::kAuto) {
    absl::StrAppendFormat(&line, "ratio %.2f chosen between %.2f and %.2f", loading.ratio, loading.ratio_min,
                          loading.ratio_max);
    if (loading.bypassed_chunks > 0) {
      absl::StrAppendFormat(&line, ", chunks bypassed: %d", loading.bypassed_chunks);
    }
  } else {
    absl::StrAppendFormat(&line, "ratio %.2f as asked", loading.ratio);
  }
  if (loading.predicted) {
    absl::StrAppendFormat(
        &line, "; predicted %s (load alone %s, compute alone %s)", HumanSeconds(loading.predicted_seconds),
        HumanSeconds(loading.predicted_load_seconds), HumanSeconds(loading.predicted_compute_seconds));
  } else if (loading.mode == RatioMode::kAuto) {
    line += "; nothing measured yet to predict from";
  }
  for (const TierRead& read : loading.reads) {
    absl::StrAppendFormat(&line, "; %s %s", Name(read.tier), HumanBytes(read.bytes));
    if (read.bytes_per_second > 0) {
      absl::StrAppendFormat(&line, " at %s/s", HumanBytes(static_cast<int64_t>(read.bytes_per_second)));
    }
  }
  return line;
}

std::string DescribeFinish(const GenerateResult& result) {
  switch (result.finish_reason) {
    case FinishReason::kEndOfText:
      return "end of text";
    case FinishReason::kStopString:
      return absl::StrCat("stop string \"", result.stop_string, "\"");
    case FinishReason::kMaxTokens:
      return "stopped at --max-tokens";
    case FinishReason::kContextFull:
      return "stopped, the context is full";
  }
  return "";
}

}  // namespace

std::vector<std::string> DescribePrompt(const PromptReport& report) {
  std::vector<std::string> lines;
  lines.push_back(
      absl::StrFormat("prompt: %d tokens = %d exact + %d reused + %d recomputed + %d computed (%s)",
                      report.prompt_tokens, report.exact_tokens, report.reused_tokens,
                      report.recomputed_tokens, report.computed_tokens, DescribeReuse(report)));
  for (const ChunkReport& chunk : report.chunks) {
    if (lines.size() > kMaxChunkLines) {
      lines.push_back(absl::StrFormat("  ... %d more chunks", report.chunks.size() - kMaxChunkLines));
      break;
    }
    lines.push_back(absl::StrFormat("  chunk %2d  %-12s %6d tokens, %d computed  %.12s%s", chunk.index + 1,
                                    Name(chunk.source), chunk.num_tokens, chunk.recomputed_tokens, chunk.key,
                                    DescribeTier(chunk)));
  }
  if (report.loading.mode == RatioMode::kAuto || !report.loading.reads.empty()) {
    lines.push_back(DescribeLoading(report.loading));
  }
  lines.push_back(absl::StrFormat("first token: %s = %s queue + %s lookup + %s load + %s select + %s prefill",
                                  HumanSeconds(report.time_to_first_token_seconds),
                                  HumanSeconds(report.queue_seconds), HumanSeconds(report.lookup_seconds),
                                  HumanSeconds(report.load_seconds), HumanSeconds(report.select_seconds),
                                  HumanSeconds(report.prefill_seconds)));
  return lines;
}

std::string DescribeResult(const GenerateResult& result) {
  std::string line = absl::StrFormat("answer: %d tokens in %s", result.completion_tokens,
                                     HumanSeconds(result.total_seconds));
  // The first token's time is the prompt's; what comes after it is decoding.
  const double decode_seconds = result.total_seconds - result.time_to_first_token_seconds;
  if (result.completion_tokens > 1 && decode_seconds > 0) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s after the first",
                          (result.completion_tokens - 1) / decode_seconds);
  }
  absl::StrAppend(&line, ", ", DescribeFinish(result));
  if (result.seed != 0) absl::StrAppend(&line, ", seed ", result.seed);
  return line;
}

}  // namespace kvblend::server::cli
