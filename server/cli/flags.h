// Groups of flags that several commands share. A flag that was not given stays empty, so that what a request
// file or the engine's defaults say holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "server/cli/command.h"

namespace kvblend::server::cli {

enum class InProcess : uint8_t { kAllowed, kServerOnly };

/// --server, and with kAllowed --model and the engine's options.
void AddConnectionFlags(CLI::App& command, InProcess in_process, Connection& connection);

struct PromptFlags {
  std::string request_file;
  std::optional<std::string> system_text;
  std::optional<std::string> lead_in;
  std::vector<std::string> chunk_texts;
  std::vector<std::string> chunk_files;
  std::optional<std::string> question;
};
void AddPromptFlags(CLI::App& command, PromptFlags& flags);

struct CallerFlags {
  std::optional<std::string> tenant_namespace;
  std::optional<double> timeout_seconds;
};
void AddCallerFlags(CLI::App& command, CallerFlags& flags);

struct BlendFlags {
  std::optional<std::string> reuse;
  bool anchored = false;
  bool isolated = false;
  std::optional<std::string> policy;
  std::optional<std::string> ratio;  // a number, or "auto"
  std::optional<double> ratio_min;
  std::optional<double> ratio_max;
  std::optional<int32_t> query_layers;
  std::optional<int32_t> hkvd_layer;
  std::optional<std::string> hkvd_source;
  std::optional<int32_t> link_tokens;
  std::optional<uint64_t> random_seed;
  bool no_store_misses = false;
};
void AddBlendFlags(CLI::App& command, BlendFlags& flags);

struct SamplingFlags {
  std::optional<int32_t> max_tokens;
  std::optional<double> temperature;
  std::optional<int32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::optional<int32_t> top_logprobs;
  bool ignore_eos = false;
};
void AddSamplingFlags(CLI::App& command, SamplingFlags& flags);

/// The request file's content (if one is named) with the flags on top. Chunks of flags come after the file's:
/// first --chunk, then --chunk-file. kInvalidArgument when there is no question.
absl::StatusOr<GenerateRequest> BuildRequest(const PromptFlags& prompt, const CallerFlags& caller,
                                             const BlendFlags& blend, const SamplingFlags& sampling);

absl::Status ApplyFlags(const BlendFlags& flags, BlendOptions& options);
void ApplyFlags(const SamplingFlags& flags, SamplingOptions& options);
void ApplyFlags(const CallerFlags& flags, Caller& caller);

}  // namespace kvblend::server::cli
