#include "tests/support/faulty_file_system.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store {

class FaultyFile final : public File {
 public:
  FaultyFile(FaultyFileSystem& fs, std::unique_ptr<File> file) : fs_(fs), file_(std::move(file)) {
    absl::MutexLock lock(&fs_.mutex_);
    fs_.most_open_files_ = std::max(fs_.most_open_files_, ++fs_.open_files_);
  }
  ~FaultyFile() override {
    absl::MutexLock lock(&fs_.mutex_);
    --fs_.open_files_;
  }

  absl::StatusOr<int64_t> ReadAt(int64_t offset, absl::Span<std::byte> out) override {
    KVBLEND_RETURN_IF_ERROR(fs_.Attempt(FaultyFileSystem::Operation::kRead, path()));
    return file_->ReadAt(offset, out.subspan(0, Transfer(out.size())));
  }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, absl::Span<const std::byte> bytes) override {
    bool dies_now = false;
    const absl::Status status = fs_.Attempt(FaultyFileSystem::Operation::kWrite, path(), &dies_now);
    if (dies_now) file_->WriteAt(offset, bytes.subspan(0, bytes.size() / 2)).status().IgnoreError();
    KVBLEND_RETURN_IF_ERROR(status);
    return file_->WriteAt(offset, bytes.subspan(0, Transfer(bytes.size())));
  }
  absl::Status Sync() override {
    KVBLEND_RETURN_IF_ERROR(fs_.Attempt(FaultyFileSystem::Operation::kSync, path()));
    return file_->Sync();
  }
  absl::StatusOr<int64_t> Size() override {
    KVBLEND_RETURN_IF_ERROR(fs_.Attempt(FaultyFileSystem::Operation::kSize, path()));
    return file_->Size();
  }
  bool direct() const override { return file_->direct(); }
  int descriptor() const override { return -1; }
  const std::string& path() const override { return file_->path(); }

 private:
  size_t Transfer(size_t size) const { return std::min(size, static_cast<size_t>(fs_.max_transfer())); }

  FaultyFileSystem& fs_;
  const std::unique_ptr<File> file_;
};

absl::Status FaultyFileSystem::Attempt(Operation operation, const std::string& path, bool* dies_now) {
  Fault fault;
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++num_operations_;
    if (number >= death_) {
      if (dies_now != nullptr) *dies_now = number == death_;
      return absl::InternalError(absl::StrCat(path, ": the process is dead"));
    }
    fault = fault_;
  }
  return fault == nullptr ? absl::OkStatus() : fault(number, operation, path);
}

absl::StatusOr<std::unique_ptr<File>> FaultyFileSystem::Open(const std::string& path, OpenMode mode) {
  KVBLEND_RETURN_IF_ERROR(Attempt(mode == OpenMode::kCreate ? Operation::kCreate : Operation::kOpen, path));
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.Open(path, mode));
  return std::make_unique<FaultyFile>(*this, std::move(file));
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kRename, from));
  return base_.Rename(from, to);
}

absl::Status FaultyFileSystem::Unlink(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kUnlink, path));
  return base_.Unlink(path);
}

absl::Status FaultyFileSystem::MakeFolder(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kMakeFolder, path));
  return base_.MakeFolder(path);
}

absl::Status FaultyFileSystem::SyncFolder(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kSyncFolder, path));
  return base_.SyncFolder(path);
}

absl::StatusOr<std::vector<FolderItem>> FaultyFileSystem::List(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kList, path));
  return base_.List(path);
}

absl::StatusOr<Space> FaultyFileSystem::SpaceOf(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kSpace, path));
  return base_.SpaceOf(path);
}

absl::Status FaultyFileSystem::CheckWritable(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kCheckWritable, path));
  return base_.CheckWritable(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultyFileSystem::Lock(const std::string& path,
                                                                 std::string_view owner) {
  KVBLEND_RETURN_IF_ERROR(Attempt(Operation::kLock, path));
  return base_.Lock(path, owner);
}

}  // namespace kvblend::store
