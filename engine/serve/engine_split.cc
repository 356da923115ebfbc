// What the engine does with texts before anything is computed: documents to chunks, prompts to passages,
// chunks found ahead.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/blend/reuse_plan.h"
#include "engine/prompt/document_splitter.h"
#include "engine/prompt/split/prompt_split.h"
#include "engine/serve/engine_impl.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend {
namespace {

/// Chunks that are looked for together.
constexpr size_t kLooksAtOnce = 128;

absl::Status CheckClient(const SplitDocumentRequest& request) {
  return request.gone && request.gone() ? absl::CancelledError("the client has gone") : absl::OkStatus();
}

/// Says of each chunk whether it is stored already.
absl::Status LookForChunks(store::ChunkStore& chunk_store, const store::KvFormat& format,
                           const SplitDocumentRequest& request, std::vector<DocumentChunk>& chunks) {
  for (size_t begin = 0; begin < chunks.size(); begin += kLooksAtOnce) {
    if (begin > 0) KVBLEND_RETURN_IF_ERROR(CheckClient(request));
    std::vector<ChunkKey> keys;
    for (size_t i = begin; i < std::min(begin + kLooksAtOnce, chunks.size()); ++i) {
      keys.push_back(chunks[i].key);
    }
    const std::vector<bool> stored = chunk_store.AreStored(request.caller.tenant_namespace, keys, format);
    for (size_t i = 0; i < keys.size(); ++i) chunks[begin + i].stored = stored[i];
  }
  return absl::OkStatus();
}

/// Those whose chunks a request may find, the one first in which it stores.
std::vector<std::string> NamespacesOf(const Caller& caller, const std::vector<std::string>& read_namespaces) {
  std::vector<std::string> namespaces = {caller.tenant_namespace};
  namespaces.insert(namespaces.end(), read_namespaces.begin(), read_namespaces.end());
  return namespaces;
}

}  // namespace

absl::StatusOr<DocumentChunks> EngineImpl::SplitDocument(const SplitDocumentRequest& request) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> anchor_ids,
                           validator_.AnchorTokens(request.anchoring, request.system_text, request.lead_in));
  KVBLEND_ASSIGN_OR_RETURN(const prompt::SplitOptions options,
                           validator_.SplitOptions(request, static_cast<int64_t>(anchor_ids.size())));
  const Digest anchor_hash = store::HashTokens(anchor_ids);
  DocumentChunks result;
  const auto add = [&](const prompt::DocumentChunk& chunk) -> absl::Status {
    KVBLEND_RETURN_IF_ERROR(CheckClient(request));
    const store::ChunkAddress address =
        blend::AddressIn(runtime_->key_space, request.caller.tenant_namespace, anchor_hash, chunk.token_ids);
    KVBLEND_ASSIGN_OR_RETURN(const int64_t stored_bytes,
                             store::ChunkKv::SizeBytes(address.format, address.num_tokens));
    result.chunks.push_back({.begin_byte = static_cast<int64_t>(chunk.begin),
                             .end_byte = static_cast<int64_t>(chunk.end),
                             .num_tokens = address.num_tokens,
                             .stored_bytes = stored_bytes,
                             .key = address.key,
                             .stored = false});
    return absl::OkStatus();
  };
  KVBLEND_ASSIGN_OR_RETURN(
      const size_t next_begin,
      prompt::SplitDocument(request.text, request.goes_on, options, *runtime_->tokenizer, add));
  result.next_byte = static_cast<int64_t>(next_begin);
  KVBLEND_RETURN_IF_ERROR(LookForChunks(*chunk_store_, runtime_->key_space.format, request, result.chunks));
  return result;
}

absl::StatusOr<prompt::PromptLayout> EngineImpl::SplitAndLayout(const Caller& caller,
                                                                const BlendOptions& blend,
                                                                int32_t reserved_tokens, Prompt& prompt) {
  const PromptSplit how = prompt.split.value_or(default_split_);
  const bool splits = how != PromptSplit::kNone && prompt.chunks.empty();
  std::vector<int32_t> passages;
  if (splits) {
    passages = prompt::SplitPrompt(how, known_texts_, NamespacesOf(caller, blend.read_namespaces),
                                   options_.max_chunks_per_request, &prompt);
  }
  KVBLEND_ASSIGN_OR_RETURN(prompt::PromptLayout layout, validator_.Layout(prompt, reserved_tokens));
  if (splits) prompt::MarkTextBetween(passages, &layout);
  if (!blend.store_misses) return layout;
  for (const prompt::Span& span : layout.spans) {
    if (span.kind == prompt::SpanKind::kChunk && !span.is_text) {
      known_texts_.Add(caller.tenant_namespace, prompt.chunks[span.chunk_index]);
    }
  }
  return layout;
}

absl::StatusOr<std::vector<PrefetchedChunk>> EngineImpl::PrefetchChunks(PrefetchChunksRequest request) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  const std::vector<std::string> namespaces = NamespacesOf(request.caller, request.read_namespaces);
  const PutChunksRequest as_put{.caller = std::move(request.caller),
                                .system_text = std::move(request.system_text),
                                .lead_in = std::move(request.lead_in),
                                .anchoring = request.anchoring,
                                .chunks = std::move(request.chunks),
                                .label = {}};
  KVBLEND_RETURN_IF_ERROR(validator_.Check(as_put));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> anchor_ids,
                           validator_.AnchorTokens(as_put.anchoring, as_put.system_text, as_put.lead_in));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> chunk_ids,
                           validator_.ChunkTokens(as_put, anchor_ids.size()));
  const Digest anchor_hash = store::HashTokens(anchor_ids);
  std::vector<PrefetchedChunk> chunks(chunk_ids.size());
  std::vector<std::optional<store::ChunkHandle>> held(chunk_ids.size());  // found in one of the namespaces
  for (const std::string& tenant_namespace : namespaces) {
    const auto key_of = [&](const Digest& hash_of_anchor, const std::vector<int32_t>& ids) {
      return blend::AddressIn(runtime_->key_space, tenant_namespace, hash_of_anchor, ids).key;
    };
    std::vector<ChunkKey> wanted;
    std::vector<size_t> wanted_by;  // the chunks that these are the keys of
    for (size_t i = 0; i < chunk_ids.size(); ++i) {
      if (held[i].has_value()) continue;
      wanted.push_back(key_of(anchor_hash, chunk_ids[i]));
      wanted_by.push_back(i);
    }
    // Prompts behind this anchor begin with it.
    if (!anchor_ids.empty()) wanted.push_back(key_of(store::IsolatedAnchorHash(), anchor_ids));
    std::vector<std::optional<store::ChunkHandle>> found = chunk_store_->Prefetch(wanted);
    for (size_t j = 0; j < wanted_by.size(); ++j) {
      PrefetchedChunk& chunk = chunks[wanted_by[j]];
      if (chunk.key.empty() || found[j].has_value()) chunk.key = wanted[j].ToHex();
      chunk.num_tokens = static_cast<int32_t>(chunk_ids[wanted_by[j]].size());
      if (found[j].has_value()) chunk.tier = found[j]->tier();
      const absl::Status fits = chunk_store_->CheckFits(runtime_->key_space.format, chunk.num_tokens);
      if (!found[j].has_value() && !fits.ok()) chunk.refusal = std::string(fits.message());
      held[wanted_by[j]] = std::move(found[j]);
    }
  }
  return chunks;
}

}  // namespace kvblend
