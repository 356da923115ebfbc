#include "engine/model/gguf_cursor.h"

#include "base/status_macros.h"

namespace kvblend::model {

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

absl::Status GgufCursor::TooShort(std::string_view what, size_t needed) const {
  return Damaged(Concat("truncated: ", what, " needs ", needed, " bytes at offset ", position_,
                        ", the file has ", bytes_.size()));
}

}  // namespace kvblend::model
