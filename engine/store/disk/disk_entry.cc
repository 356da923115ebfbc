#include "engine/store/disk/disk_entry.h"

#include "base/status_macros.h"

namespace kvblend::store::internal {

static_assert(ChunkKv::kSectionAlignment % kDirectAlignment == 0);

std::shared_ptr<File> HeldFiles::Hold(std::unique_ptr<File> file) {
  if (count_.fetch_add(1) >= most_) {
    --count_;
    return nullptr;
  }
  return {file.release(), [this](File* held) {
            delete held;
            --count_;
          }};
}

absl::StatusOr<ReadId> DiskEntry::ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                            absl::AnyInvocable<void(absl::Status)> done) {
  KVBLEND_RETURN_IF_ERROR(CheckRead(layer, out));
  return reads_.Submit(
      {.file = file_,
       .open = open_,
       .offset = header_.header_bytes() + layer * header_.layer_bytes(),
       .out = out,
       .priority = priority,
       .done = [self = shared_from_this(), layer, out, done = std::move(done)](absl::Status status) mutable {
         if (status.ok()) status = VerifyLayer(self->header_, layer, out);
         self->on_read_(status, static_cast<int64_t>(out.size()));
         if (absl::IsUnavailable(status)) status = absl::ResourceExhaustedError(status.message());
         done(std::move(status));
       }});
}

}  // namespace kvblend::store::internal
