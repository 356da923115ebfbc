#include "engine/store/format/chunk_kv.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblend::store {
namespace {

absl::Status CheckDimension(const char* name, int32_t value, int32_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("KV format: ", name, " is ", value, "; allowed: 1 to ", max));
}

int64_t SectionBytes(const KvFormat& format, kernels::KvPart part, int32_t num_tokens) {
  constexpr int64_t kAlign = ChunkKv::kSectionAlignment;
  return (format.Section(part, num_tokens).size_bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

int64_t KvFormat::BytesPerToken() const {
  const int64_t elements = RowElements();
  if (!kernels::IsQuantized(encoding)) {
    return 2 * num_layers * elements * kernels::SizeOf(kernels::DenseType(encoding));
  }
  // A step, and an offset if there is one, are 2 bytes each: per token and group of channels for V, and for K
  // per channel and group of tokens, of which a token's share counts.
  const int64_t scale_bytes = kernels::HasOffsets(encoding) ? 4 : 2;
  const auto groups = [](int64_t count) { return (count + kernels::kKvGroup - 1) / kernels::kKvGroup; };
  const int64_t codes = kernels::LayoutOf(encoding, kernels::KvPart::kKey, 1, elements).code_row_bytes;
  return num_layers * (2 * codes + groups(scale_bytes * elements) + scale_bytes * groups(elements));
}

absl::Status KvFormat::Validate() const {
  if (kernels::Name(encoding) == "?") {
    return absl::InvalidArgumentError(absl::StrCat("KV format: encoding is ", static_cast<int>(encoding),
                                                   "; allowed: f32, bf16, f16, int8, int4, fp8"));
  }
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
  const int64_t row_elements = format.RowElements();  // below 2^38
  int64_t total = 0;
  if (num_tokens > 0 && row_elements > (int64_t{1} << 58) / num_tokens) {
    total = -1;
  } else if (__builtin_mul_overflow(SectionBytes(format, kernels::KvPart::kKey, num_tokens) +
                                        SectionBytes(format, kernels::KvPart::kValue, num_tokens),
                                    int64_t{format.num_layers}, &total)) {
    total = -1;
  }
  if (total < 0) {
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
    : format_(format),
      num_tokens_(num_tokens),
      memory_(memory),
      data_(data),
      size_bytes_(size_bytes),
      k_bytes_(SectionBytes(format, kernels::KvPart::kKey, num_tokens)),
      v_bytes_(SectionBytes(format, kernels::KvPart::kValue, num_tokens)) {
  // Bytes that no section writes must not hold old memory: they go into files and checksums.
  for (int32_t layer = 0; layer < format_.num_layers && data_ != nullptr; ++layer) {
    const MutableLayerKv sections = MutableLayer(layer);
    for (const auto& [section, bytes] : {std::pair(sections.k, k_bytes_), std::pair(sections.v, v_bytes_)}) {
      const int64_t used = section.layout().size_bytes;
      std::memset(static_cast<std::byte*>(section.data) + used, 0, bytes - used);
    }
  }
}

ChunkKv::~ChunkKv() {
  if (data_ != nullptr) memory_.Free(data_, size_bytes_);
}

kernels::MutableKvSectionView ChunkKv::Section(int32_t layer, kernels::KvPart part) const {
  const int64_t begin = layer * layer_bytes() + (part == kernels::KvPart::kKey ? 0 : k_bytes_);
  return {data_ == nullptr ? nullptr : data_ + begin, format_.encoding, part, num_tokens_,
          format_.RowElements()};
}

LayerKv ChunkKv::Layer(int32_t layer) const {
  assert(layer >= 0 && layer < format_.num_layers);
  return {Section(layer, kernels::KvPart::kKey), Section(layer, kernels::KvPart::kValue)};
}

MutableLayerKv ChunkKv::MutableLayer(int32_t layer) {
  assert(layer >= 0 && layer < format_.num_layers);
  return {Section(layer, kernels::KvPart::kKey), Section(layer, kernels::KvPart::kValue)};
}

absl::Span<const std::byte> ChunkKv::LayerBytes(int32_t layer) const {
  assert(layer >= 0 && layer < format_.num_layers);
  if (data_ == nullptr) return {};
  return absl::MakeConstSpan(data_ + layer * layer_bytes(), layer_bytes());
}

absl::Span<std::byte> ChunkKv::MutableLayerBytes(int32_t layer) {
  assert(layer >= 0 && layer < format_.num_layers);
  if (data_ == nullptr) return {};
  return absl::MakeSpan(data_ + layer * layer_bytes(), layer_bytes());
}

}  // namespace kvblend::store
