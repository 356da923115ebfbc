// Writes GGUF files for tests. Written from the GGUF specification, apart from the reader in engine/model, so
// that the two check each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace kvblend::test_support {

/// GGUF's numbers for value types.
inline constexpr uint32_t kGgufUint32 = 4;
inline constexpr uint32_t kGgufInt32 = 5;
inline constexpr uint32_t kGgufFloat32 = 6;
inline constexpr uint32_t kGgufBool = 7;
inline constexpr uint32_t kGgufString = 8;
inline constexpr uint32_t kGgufArray = 9;
inline constexpr uint32_t kGgufUint64 = 10;

/// GGUF's numbers for tensor types.
inline constexpr uint32_t kGgufF32 = 0;
inline constexpr uint32_t kGgufF16 = 1;
inline constexpr uint32_t kGgufQ8_0 = 8;

/// Appends the value's bytes, little endian.
template <typename T>
void AppendBytes(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Appends a GGUF string: its length in 8 bytes, then its bytes.
void AppendGgufString(std::string& out, std::string_view text);

/// The file as readers take it. The text must stay.
inline absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

class GgufBuilder {
 public:
  // A key that is already there gets the new value.
  GgufBuilder& SetString(std::string_view key, std::string_view value);
  GgufBuilder& SetUint32(std::string_view key, uint32_t value);
  GgufBuilder& SetFloat32(std::string_view key, float value);
  GgufBuilder& SetBool(std::string_view key, bool value);
  GgufBuilder& SetStringArray(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& SetInt32Array(std::string_view key, const std::vector<int32_t>& values);
  GgufBuilder& SetFloatArray(std::string_view key, const std::vector<float>& values);
  /// `value` is what the file holds after the type.
  GgufBuilder& SetRaw(std::string_view key, uint32_t type, std::string value);
  GgufBuilder& RemoveKey(std::string_view key);

  /// dims[0] is the row length. A tensor that is already there is replaced.
  GgufBuilder& SetTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         std::string data);
  GgufBuilder& SetTensorF32(std::string_view name, const std::vector<uint64_t>& dims,
                            const std::vector<float>& data);
  GgufBuilder& RemoveTensor(std::string_view name);

  GgufBuilder& SetVersion(uint32_t version);
  /// Also writes the key general.alignment.
  GgufBuilder& SetAlignment(uint32_t alignment);

  /// The whole file.
  std::string Build() const;

 private:
  struct Entry {
    std::string key;
    uint32_t type;
    std::string value;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    std::string data;
  };
  uint32_t version_ = 3;
  uint32_t alignment_ = 32;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
};

}  // namespace kvblend::test_support
