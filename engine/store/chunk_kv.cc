#include "engine/store/chunk_kv.h"

#include <cassert>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblend::store {
namespace {

absl::Status CheckDimension(const char* name, int32_t value, int32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV format: ", name, " is ", value, "; allowed: 1 to ", max));
}

}  // namespace

absl::Status KvFormat::Validate() const {
  // Far above any model, and small enough that BytesPerToken (< 2^58) can't overflow.
  if (absl::Status s = CheckDimension("num_layers", num_layers, 1 << 16); !s.ok()) return s;
  if (absl::Status s = CheckDimension("num_kv_heads", num_kv_heads, 1 << 20); !s.ok()) return s;
  if (absl::Status s = CheckDimension("head_dim", head_dim, 1 << 18); !s.ok()) return s;
  if (version != 1) {
    return absl::InvalidArgumentError(absl::StrCat("KV format: version is ", version, "; allowed: 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ChunkKv::SizeBytes(const KvFormat& format, int32_t num_tokens) {
  if (absl::Status s = format.Validate(); !s.ok()) return s;
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk KV: num_tokens is ", num_tokens, "; allowed: >= 0"));
  }
  constexpr int64_t kAlign = HostMemory::kAlignment;
  const int64_t row_bytes = format.RowElements() * kernels::SizeOf(format.dtype);
  int64_t section = 0;
  int64_t total = 0;
  if (__builtin_mul_overflow(row_bytes, int64_t{num_tokens}, &section) ||
      __builtin_add_overflow(section, kAlign - 1, &section) ||
      __builtin_mul_overflow(section / kAlign * kAlign, 2 * int64_t{format.num_layers}, &total)) {
    return absl::InvalidArgumentError(absl::StrCat("chunk KV: ", num_tokens, " tokens of ",
                                                   format.BytesPerToken(),
                                                   " bytes each are more than can be addressed"));
  }
  return total;
}

absl::StatusOr<std::unique_ptr<ChunkKv>> ChunkKv::Allocate(const KvFormat& format, int32_t num_tokens,
                                                           HostMemory& memory) {
  const absl::StatusOr<int64_t> size_bytes = SizeBytes(format, num_tokens);
  if (!size_bytes.ok()) return size_bytes.status();
  void* data = *size_bytes == 0 ? nullptr : memory.Allocate(*size_bytes);
  if (data == nullptr && *size_bytes > 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("chunk KV: no host memory for ", *size_bytes, " bytes (", num_tokens, " tokens)"));
  }
  return std::unique_ptr<ChunkKv>(
      new ChunkKv(format, num_tokens, memory, static_cast<std::byte*>(data), *size_bytes));
}

ChunkKv::ChunkKv(const KvFormat& format, int32_t num_tokens, HostMemory& memory, std::byte* data,
                 int64_t size_bytes)
    : format_(format), num_tokens_(num_tokens), memory_(memory), data_(data), size_bytes_(size_bytes) {}

ChunkKv::~ChunkKv() {
  if (data_ != nullptr) memory_.Free(data_, size_bytes_);
}

kernels::MatrixView ChunkKv::Section(int32_t index) const {
  const int64_t section_bytes = size_bytes_ / (2 * int64_t{format_.num_layers});
  const int64_t cols = format_.RowElements();
  return {data_ == nullptr ? nullptr : data_ + index * section_bytes, format_.dtype, num_tokens_, cols, cols};
}

LayerKv ChunkKv::Layer(int32_t layer) const {
  assert(layer >= 0 && layer < format_.num_layers);
  return {Section(2 * layer), Section(2 * layer + 1)};
}

MutableLayerKv ChunkKv::MutableLayer(int32_t layer) {
  assert(layer >= 0 && layer < format_.num_layers);
  return {Section(2 * layer), Section(2 * layer + 1)};
}

}  // namespace kvblend::store
