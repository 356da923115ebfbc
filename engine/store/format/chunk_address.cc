#include "engine/store/format/chunk_address.h"

#include "engine/store/format/serialize.h"

namespace kvblend::store {
namespace {

enum class KeyKind : uint8_t { kChunk = 1, kContent = 2 };

Digest HashIdentity(const ChunkIdentity& identity, KeyKind kind) {
  Serializer out;
  out.String("kvblend chunk");
  out.U32(1);
  out.U8(static_cast<uint8_t>(kind));
  out.Fixed(identity.model_fingerprint);
  const KvFormat& format = identity.format;
  out.String(kernels::Name(format.encoding));
  out.U32(static_cast<uint32_t>(format.num_layers));
  out.U32(static_cast<uint32_t>(format.num_kv_heads));
  out.U32(static_cast<uint32_t>(format.head_dim));
  out.U32(static_cast<uint32_t>(format.version));
  out.String(identity.tenant_namespace);
  if (kind == KeyKind::kChunk) out.Fixed(identity.anchor_hash);
  out.Tokens(identity.token_ids);
  return Sha256(out.bytes());
}

}  // namespace

ChunkAddress AddressOf(const ChunkIdentity& identity) {
  return {.model_fingerprint = identity.model_fingerprint,
          .key = ChunkKey(HashIdentity(identity, KeyKind::kChunk)),
          .content_key = ContentKey(HashIdentity(identity, KeyKind::kContent)),
          .anchor_hash = identity.anchor_hash,
          .format = identity.format,
          .tenant_namespace = std::string(identity.tenant_namespace),
          .num_tokens = static_cast<int32_t>(identity.token_ids.size())};
}

}  // namespace kvblend::store
