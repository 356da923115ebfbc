#include "engine/serve/request_validation.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/blend/selection_policy.h"
#include "engine/generate/sampling_options.h"
#include "engine/text/utf8.h"

namespace kvblend {
namespace {

constexpr size_t kMaxLabelBytes = 256;

absl::Status CheckUtf8(absl::string_view field, std::string_view text) {
  const auto invalid = text::FirstInvalidUtf8(text);
  if (!invalid.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is not valid UTF-8 at byte ", *invalid));
}

/// Of a namespace or a label.
absl::Status CheckName(absl::string_view field, std::string_view name, size_t max_bytes) {
  if (name.size() <= max_bytes) return CheckUtf8(field, name);
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", name.size(), " bytes; allowed: at most ", max_bytes));
}

}  // namespace

absl::Status RequestValidator::CheckCaller(const Caller& caller) const {
  return CheckName("namespace", caller.tenant_namespace, Caller::kMaxNamespaceBytes);
}

absl::Status RequestValidator::CheckReadNamespaces(const std::string& field,
                                                   const std::vector<std::string>& names) const {
  if (names.size() > kMaxReadNamespaces) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", names.size(), " entries; allowed: at most ", kMaxReadNamespaces));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(
        CheckName(absl::StrCat(field, "[", i, "]"), names[i], Caller::kMaxNamespaceBytes));
  }
  return absl::OkStatus();
}

absl::Status RequestValidator::CheckChunkCount(size_t count) const {
  if (count <= static_cast<size_t>(options_.max_chunks_per_request)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("chunks has ", count, " entries; allowed: at most ", options_.max_chunks_per_request));
}

absl::Status RequestValidator::CheckTextBytes(int64_t bytes) const {
  if (bytes <= options_.max_text_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the request's texts have ", bytes, " bytes; allowed: at most ", options_.max_text_bytes));
}

absl::Status RequestValidator::CheckPrompt(const Prompt& prompt, int64_t other_bytes) const {
  if (prompt.split.value_or(PromptSplit::kNone) != PromptSplit::kNone && !prompt.chunks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt.split is ", std::string(Name(*prompt.split)),
                                                   " and chunks has ", prompt.chunks.size(),
                                                   " entries; allowed: split only without chunks"));
  }
  size_t chunks = prompt.chunks.size();
  int64_t bytes = other_bytes + static_cast<int64_t>(prompt.system_text.size() + prompt.lead_in.size() +
                                                     prompt.question.size());
  for (const std::string& chunk : prompt.chunks) bytes += chunk.size();
  for (const Turn& turn : prompt.history) {
    bytes += turn.text.size() + turn.lead_in.size();
    for (const std::string& chunk : turn.chunks) bytes += chunk.size();
    chunks += turn.chunks.size();
  }
  KVBLEND_RETURN_IF_ERROR(CheckChunkCount(chunks));
  return CheckTextBytes(bytes);
}

absl::Status RequestValidator::Check(const GenerateRequest& request) const {
  KVBLEND_RETURN_IF_ERROR(CheckCaller(request.caller));
  int64_t stop_bytes = 0;
  for (const std::string& stop : request.sampling.stop) stop_bytes += static_cast<int64_t>(stop.size());
  KVBLEND_RETURN_IF_ERROR(CheckPrompt(request.prompt, stop_bytes));
  KVBLEND_RETURN_IF_ERROR(blend::ValidateBlendOptions(request.blend, runtime_.config.num_layers));
  KVBLEND_RETURN_IF_ERROR(CheckReadNamespaces("blend.read_namespaces", request.blend.read_namespaces));
  for (size_t i = 0; i < request.sampling.stop.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("stop[", i, "]"), request.sampling.stop[i]));
  }
  return generate::ValidateSampling(request.sampling, runtime_.config.vocab_size);
}

absl::Status RequestValidator::Check(const ScoreRequest& request) const {
  KVBLEND_RETURN_IF_ERROR(CheckCaller(request.caller));
  KVBLEND_RETURN_IF_ERROR(CheckPrompt(request.prompt, static_cast<int64_t>(request.continuation.size())));
  KVBLEND_RETURN_IF_ERROR(CheckReadNamespaces("blend.read_namespaces", request.blend.read_namespaces));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("continuation", request.continuation));
  if (request.continuation.empty() == request.continuation_token_ids.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.continuation.empty() ? "neither" : "both",
                     " of continuation and continuation_token_ids given; allowed: exactly one, not empty"));
  }
  for (size_t i = 0; i < request.continuation_token_ids.size(); ++i) {
    const int32_t token = request.continuation_token_ids[i];
    if (token >= 0 && token < runtime_.config.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("continuation_token_ids[", i, "] is ", token,
                                                   "; allowed: 0 to ", runtime_.config.vocab_size - 1));
  }
  return blend::ValidateBlendOptions(request.blend, runtime_.config.num_layers);
}

absl::Status RequestValidator::Check(const PutChunksRequest& request) const {
  KVBLEND_RETURN_IF_ERROR(CheckCaller(request.caller));
  KVBLEND_RETURN_IF_ERROR(CheckChunkCount(request.chunks.size()));
  if (request.chunks.empty()) return absl::InvalidArgumentError("chunks is empty; allowed: one or more");
  KVBLEND_RETURN_IF_ERROR(CheckName("label", request.label, kMaxLabelBytes));
  if (!request.chunk_labels.empty() && request.chunk_labels.size() != request.chunks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_labels has ", request.chunk_labels.size(),
                                                   " entries; allowed: none, or one for each of ",
                                                   request.chunks.size(), " chunks"));
  }
  for (size_t i = 0; i < request.chunk_labels.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(
        CheckName(absl::StrCat("chunk_labels[", i, "]"), request.chunk_labels[i], kMaxLabelBytes));
  }
  int64_t bytes = request.system_text.size() + request.lead_in.size();
  for (const std::string& chunk : request.chunks) bytes += chunk.size();
  return CheckTextBytes(bytes);
}

absl::Status RequestValidator::Check(const PrefetchChunksRequest& request) const {
  return CheckReadNamespaces("read_namespaces", request.read_namespaces);
}

absl::Status RequestValidator::Check(const SplitDocumentRequest& request) const {
  KVBLEND_RETURN_IF_ERROR(CheckCaller(request.caller));
  return CheckTextBytes(
      static_cast<int64_t>(request.system_text.size() + request.lead_in.size() + request.text.size()));
}

absl::StatusOr<prompt::PromptLayout> RequestValidator::Layout(const Prompt& prompt,
                                                              int32_t reserved_tokens) const {
  const prompt::PromptLimits limits{.max_prompt_tokens = runtime_.max_context_tokens - reserved_tokens,
                                    .max_chunks = options_.max_chunks_per_request};
  return prompt::BuildPromptLayout(prompt, *runtime_.tokenizer, *runtime_.chat_template, limits);
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::Continuation(const ScoreRequest& request) const {
  std::vector<int32_t> token_ids = request.continuation_token_ids;
  if (token_ids.empty()) {
    const auto counted = static_cast<size_t>(runtime_.max_context_tokens + prompt::kExcessCounted);
    auto encoded =
        runtime_.tokenizer->EncodeAtMost(request.continuation, text::TextPosition::kFirst, counted);
    if (!encoded.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("continuation has more than ", counted,
                                                     " tokens; allowed: fewer than the context's ",
                                                     runtime_.max_context_tokens));
    }
    token_ids = *std::move(encoded);
  }
  if (static_cast<int64_t>(token_ids.size()) >= runtime_.max_context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("continuation has ", token_ids.size(),
                                                   " tokens; allowed: fewer than the context's ",
                                                   runtime_.max_context_tokens));
  }
  return token_ids;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::AnchorTokens(Anchoring anchoring,
                                                                    std::string_view system_text,
                                                                    std::string_view lead_in) const {
  if (anchoring == Anchoring::kIsolated) return std::vector<int32_t>();
  return prompt::AnchorTokens(system_text, lead_in, *runtime_.chat_template, runtime_.max_context_tokens);
}

absl::StatusOr<prompt::SplitOptions> RequestValidator::SplitOptions(const SplitDocumentRequest& request,
                                                                    int64_t anchor_tokens) const {
  prompt::SplitOptions options{.chunk_tokens = request.chunk_tokens};
  options.overlap_tokens =
      request.overlap_tokens.value_or(std::min(options.overlap_tokens, options.chunk_tokens / 2));
  KVBLEND_RETURN_IF_ERROR(prompt::ValidateSplitOptions(options));
  if (anchor_tokens + options.chunk_tokens > runtime_.max_context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_tokens is ", options.chunk_tokens, " behind an anchor of ", anchor_tokens,
                     " tokens; allowed: together at most ", runtime_.max_context_tokens));
  }
  return options;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> RequestValidator::ChunkTokens(
    const PutChunksRequest& request, int64_t anchor_tokens) const {
  std::vector<std::vector<int32_t>> chunks;
  for (size_t i = 0; i < request.chunks.size(); ++i) {
    const std::string field = absl::StrCat("chunks[", i, "]");
    KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                             prompt::ChunkTokens(request.chunks[i], field, *runtime_.tokenizer,
                                                 runtime_.max_context_tokens - anchor_tokens));
    if (anchor_tokens + static_cast<int64_t>(tokens.size()) > runtime_.max_context_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " has ", tokens.size(), " tokens behind an anchor of ", anchor_tokens,
                       "; allowed: together at most ", runtime_.max_context_tokens));
    }
    chunks.push_back(std::move(tokens));
  }
  return chunks;
}

}  // namespace kvblend
