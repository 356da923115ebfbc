// The byte encodings that keys are hashed over; chunk_address.h documents them. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store {

/// Appends self-delimiting values: a sequence of calls with other values never gives the same bytes.
class Serializer {
 public:
  void U8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void U32(uint32_t value) { LittleEndian(value, 4); }
  void U64(uint64_t value) { LittleEndian(value, 8); }
  void String(std::string_view value) {
    U64(value.size());
    bytes_.append(value);
  }
  void Fixed(const Digest& value) {
    bytes_.append(reinterpret_cast<const char*>(value.data()), value.size());
  }
  void Tokens(absl::Span<const int32_t> token_ids) {
    U64(token_ids.size());
    bytes_.reserve(bytes_.size() + 4 * token_ids.size());
    for (const int32_t id : token_ids) U32(static_cast<uint32_t>(id));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void LittleEndian(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) U8(static_cast<uint8_t>(value >> (8 * i)));
  }

  std::string bytes_;
};

}  // namespace kvblend::store
