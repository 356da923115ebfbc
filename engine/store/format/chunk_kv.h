// The KV of one chunk in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/store/format/host_memory.h"
#include "engine/store/format/kv_format.h"
#include "kernels/kv_section.h"

namespace kvblend::store {

/// One layer of a chunk, [num_tokens, num_kv_heads * head_dim] each. Views; what they are valid with is said
/// where they are handed out.
struct LayerKv {
  kernels::KvSectionView k;  // un-rotated
  kernels::KvSectionView v;
};

struct MutableLayerKv {
  kernels::MutableKvSectionView k;  // as in LayerKv
  kernels::MutableKvSectionView v;
};

/// Owns the bytes of one chunk: per layer a K section (before RoPE) and a V section, each aligned to
/// kSectionAlignment, the two of a layer next to each other, layers in order: just as they lie in a file, so
/// that a layer, or all of them, are one read.
///
/// Whoever computes the chunk fills it through MutableLayer and hands it to the store, which keeps it as
/// const: from then on any number of threads may read. Not thread-safe before.
class ChunkKv {
 public:
  static constexpr int64_t kSectionAlignment = HostMemory::kAlignment;  // bytes

  /// Sections are uninitialised, the padding between them zero: fill every layer. num_tokens may be 0.
  /// kInvalidArgument: bad format or negative num_tokens. kResourceExhausted: no memory, naming the bytes.
  static absl::StatusOr<std::unique_ptr<ChunkKv>> Allocate(const KvFormat& format, int32_t num_tokens,
                                                           HostMemory& memory = Heap());
  /// Bytes that Allocate would take, padding included; the same errors, but for memory.
  static absl::StatusOr<int64_t> SizeBytes(const KvFormat& format, int32_t num_tokens);

  ~ChunkKv();
  ChunkKv(const ChunkKv&) = delete;
  ChunkKv& operator=(const ChunkKv&) = delete;

  const KvFormat& format() const { return format_; }
  int32_t num_tokens() const { return num_tokens_; }
  int64_t size_bytes() const { return size_bytes_; }

  /// REQUIRES: 0 <= layer < format().num_layers. Valid as long as this object.
  LayerKv Layer(int32_t layer) const;
  MutableLayerKv MutableLayer(int32_t layer);
  /// The bytes of one layer: its K section, its V section and their padding; layer_bytes() of them.
  absl::Span<const std::byte> LayerBytes(int32_t layer) const;
  absl::Span<std::byte> MutableLayerBytes(int32_t layer);
  int64_t layer_bytes() const { return k_bytes_ + v_bytes_; }
  int64_t k_section_bytes() const { return k_bytes_; }  // of layer_bytes(), padding included

 private:
  ChunkKv(const KvFormat& format, int32_t num_tokens, HostMemory& memory, std::byte* data,
          int64_t size_bytes);
  kernels::MutableKvSectionView Section(int32_t layer, kernels::KvPart part) const;

  const KvFormat format_;
  const int32_t num_tokens_;
  HostMemory& memory_;
  std::byte* const data_;  // null when size_bytes_ is 0
  const int64_t size_bytes_;
  const int64_t k_bytes_;  // of one layer's section, padding included
  const int64_t v_bytes_;
};

}  // namespace kvblend::store
