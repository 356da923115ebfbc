#include "engine/model/gguf/gguf_cursor.h"

#include "base/status_macros.h"

namespace kvblend::model {

absl::Status GgufCursor::ReadBytes(std::string_view what, uint64_t count,
                                   absl::Span<const std::byte>& bytes) {
  if (remaining() < count) {
    return Damaged(Concat("truncated: ", what, " needs ", count, " bytes at offset ", position_,
                          ", the file has ", bytes_.size()));
  }
  bytes = Take(count);
  return absl::OkStatus();
}

absl::Status GgufCursor::ReadString(std::string_view what, std::string_view& text) {
  uint64_t length = 0;
  KVBLEND_RETURN_IF_ERROR(Read(Concat("the length of ", what), length));
  if (length > remaining()) {
    return Damaged(Concat(what, " at offset ", position_, " claims ", length, " bytes; allowed: up to the ",
                          remaining(), " that the file still has"));
  }
  const absl::Span<const std::byte> taken = Take(length);
  text = {reinterpret_cast<const char*>(taken.data()), taken.size()};
  return absl::OkStatus();
}

absl::Span<const std::byte> GgufCursor::Take(uint64_t count) {
  const absl::Span<const std::byte> taken = bytes_.subspan(position_, count);
  position_ += count;
  return taken;
}

absl::Status GgufCursor::Invalid(std::string_view what) const {
  return absl::InvalidArgumentError(Concat(name_, ": ", what));
}

absl::Status GgufCursor::Damaged(std::string_view what) const {
  return absl::DataLossError(Concat(name_, ": ", what));
}

absl::Status GgufCursor::Unimplemented(std::string_view what) const {
  return absl::UnimplementedError(Concat(name_, ": ", what));
}

}  // namespace kvblend::model
