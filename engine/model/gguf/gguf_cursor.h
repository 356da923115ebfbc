// Reads little-endian fields one after the other and refuses to leave the file. Internal to engine/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {

class GgufCursor {
 public:
  /// `name` stands for the file in messages.
  GgufCursor(absl::Span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  absl::Span<const std::byte> bytes() const { return bytes_; }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  /// The next field; `what` names it in the error (kDataLoss).
  template <typename T>
  absl::Status Read(std::string_view what, T& value) {
    absl::Span<const std::byte> bytes;
    absl::Status status = ReadBytes(what, sizeof(T), bytes);
    if (status.ok()) std::memcpy(&value, bytes.data(), sizeof(T));
    return status;
  }

  absl::Status ReadBytes(std::string_view what, uint64_t count, absl::Span<const std::byte>& bytes);

  /// A GGUF string: its length in 8 bytes, then its bytes. `text` points into the file.
  absl::Status ReadString(std::string_view what, std::string_view& text);

  /// The next `count` bytes. REQUIRES: count <= remaining().
  absl::Span<const std::byte> Take(uint64_t count);

  /// Errors that name the file, for a value that is not allowed, a file that contradicts itself, and a
  /// feature that is not read.
  absl::Status Invalid(std::string_view what) const;
  absl::Status Damaged(std::string_view what) const;
  absl::Status Unimplemented(std::string_view what) const;

 private:
  absl::Span<const std::byte> bytes_;
  std::string_view name_;
  uint64_t position_ = 0;
};

}  // namespace kvblend::model
