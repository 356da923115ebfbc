#include "server/cli/prompt_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/engine.h"
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
                                    chunk.tier == Tier::kDisk ? "  from disk" : ""));
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
