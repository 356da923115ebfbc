#include "engine/store/disk/file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store {

absl::Status ReadProgress::Advance(const File& file, int64_t num_bytes) {
  const int64_t have = next_ + num_bytes;
  if (have <= have_) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": ends ", size_ - have_, " bytes before the end of a read"));
  }
  have_ = have;
  next_ = direct_ ? have / kDirectAlignment * kDirectAlignment : have;
  return absl::OkStatus();
}

absl::Status ReadFully(File& file, int64_t offset, absl::Span<std::byte> out) {
  ReadProgress progress(file, static_cast<int64_t>(out.size()));
  while (!progress.complete()) {
    KVBLEND_ASSIGN_OR_RETURN(
        const int64_t read,
        file.ReadAt(offset + progress.next(), out.subspan(static_cast<size_t>(progress.next()))));
    KVBLEND_RETURN_IF_ERROR(progress.Advance(file, read));
  }
  return absl::OkStatus();
}

absl::Status WriteFully(File& file, int64_t offset, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const int64_t written, file.WriteAt(offset, bytes));
    if (written < 1) return absl::InternalError(absl::StrCat(file.path(), ": nothing was written"));
    offset += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string FolderAbove(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status MakeFolders(FileSystem& fs, const std::string& path) {
  absl::Status made = fs.MakeFolder(path);
  if (absl::IsNotFound(made) && FolderAbove(path).size() > 1) {
    KVBLEND_RETURN_IF_ERROR(MakeFolders(fs, FolderAbove(path)));
    made = fs.MakeFolder(path);
  }
  if (absl::IsAlreadyExists(made)) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(made);
  return fs.SyncFolder(FolderAbove(path));
}

}  // namespace kvblend::store
