#include "engine/store/disk/read_header.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/format/host_memory.h"

namespace kvblend::store::internal {
namespace {

class AlignedBuffer {
 public:
  /// REQUIRES: size > 0
  explicit AlignedBuffer(int64_t size) : size_(size), data_(Heap().Allocate(size)) {}
  ~AlignedBuffer() {
    if (data_ != nullptr) Heap().Free(data_, size_);
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  bool ok() const { return data_ != nullptr; }
  absl::Span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), static_cast<size_t>(size_)}; }

 private:
  const int64_t size_;
  void* const data_;
};

absl::Status Damaged(const File& file, const std::string& why) {
  return absl::DataLossError(absl::StrCat(file.path(), ": ", why));
}

absl::StatusOr<EntryHeader> Decode(const File& file, absl::Span<const std::byte> bytes) {
  absl::StatusOr<EntryHeader> header = DecodeEntryHeader(bytes);
  if (header.ok()) return header;
  return absl::Status(header.status().code(), absl::StrCat(file.path(), ": ", header.status().message()));
}

}  // namespace

absl::StatusOr<EntryHeader> ReadHeader(File& file, const ChunkKey& key) {
  KVBLEND_ASSIGN_OR_RETURN(const int64_t file_bytes, file.Size());
  if (file_bytes < kEntryPageBytes) {
    return Damaged(file, absl::StrCat("is ", file_bytes, " bytes, shorter than any entry"));
  }
  const AlignedBuffer page(kEntryPageBytes);
  if (!page.ok()) return absl::UnavailableError("no memory for a page");
  KVBLEND_RETURN_IF_ERROR(ReadFully(file, 0, page.bytes()));
  const absl::StatusOr<int64_t> header_bytes = EntryHeaderBytes(page.bytes());
  if (!header_bytes.ok()) {
    return absl::Status(header_bytes.status().code(),
                        absl::StrCat(file.path(), ": ", header_bytes.status().message()));
  }
  if (*header_bytes > file_bytes) {
    return Damaged(file, absl::StrCat("is ", file_bytes, " bytes, its header alone ", *header_bytes));
  }
  absl::StatusOr<EntryHeader> header = absl::InternalError("not read");
  if (*header_bytes <= kEntryPageBytes) {
    header = Decode(file, page.bytes());
  } else {
    const AlignedBuffer whole(*header_bytes);
    if (!whole.ok()) return absl::UnavailableError(absl::StrCat("no memory for ", *header_bytes, " bytes"));
    KVBLEND_RETURN_IF_ERROR(ReadFully(file, 0, whole.bytes()));
    header = Decode(file, whole.bytes());
  }
  if (!header.ok()) return header;
  if (header->address.key != key) {
    return Damaged(file, absl::StrCat("holds another chunk: ", header->address.key.ToHex()));
  }
  if (header->total_bytes() != file_bytes) {
    return Damaged(file, absl::StrCat("is ", file_bytes, " bytes; its header says ", header->total_bytes()));
  }
  return header;
}

}  // namespace kvblend::store::internal
