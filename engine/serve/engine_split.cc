// The engine's SplitDocument.
#include <string_view>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/blend/reuse_plan.h"
#include "engine/prompt/document_splitter.h"
#include "engine/serve/engine_impl.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend {
namespace {

/// Whether storing the chunk once more would do nothing: it is there, and in the lower tier where there is
/// one.
bool IsStored(store::ChunkStore& chunk_store, std::string_view tenant_namespace, const ChunkKey& key) {
  if (!chunk_store.Stat(tenant_namespace, key).ok()) return false;
  const absl::Status durable = chunk_store.WaitUntilDurable(key, absl::InfinitePast());
  return durable.ok() || absl::IsFailedPrecondition(durable);
}

}  // namespace

absl::StatusOr<DocumentChunks> EngineImpl::SplitDocument(const SplitDocumentRequest& request) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> anchor_ids,
                           validator_.AnchorTokens(request.anchoring, request.system_text, request.lead_in));
  KVBLEND_ASSIGN_OR_RETURN(const prompt::SplitOptions options,
                           validator_.SplitOptions(request, static_cast<int64_t>(anchor_ids.size())));
  KVBLEND_ASSIGN_OR_RETURN(
      const prompt::DocumentChunks split,
      prompt::SplitDocument(request.text, request.goes_on, options, *runtime_->tokenizer));
  const Digest anchor_hash = store::HashTokens(anchor_ids);
  DocumentChunks result;
  result.next_byte = static_cast<int64_t>(split.next_begin);
  for (const prompt::DocumentChunk& chunk : split.chunks) {
    const store::ChunkAddress address =
        blend::AddressIn(runtime_->key_space, request.caller.tenant_namespace, anchor_hash, chunk.token_ids);
    KVBLEND_ASSIGN_OR_RETURN(const int64_t stored_bytes,
                             store::ChunkKv::SizeBytes(address.format, address.num_tokens));
    result.chunks.push_back(
        {.begin_byte = static_cast<int64_t>(chunk.begin),
         .end_byte = static_cast<int64_t>(chunk.end),
         .num_tokens = address.num_tokens,
         .stored_bytes = stored_bytes,
         .key = address.key.ToHex(),
         .stored = IsStored(*chunk_store_, request.caller.tenant_namespace, address.key)});
  }
  return result;
}

}  // namespace kvblend
