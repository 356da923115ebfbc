// The seam between the disk tier and the operating system: everything that the tier does to files goes
// through here, so that tests can let it fail, tear and die at every single operation.
//
// Errors name the operation, the path and the system's reason. Codes:
//     kNotFound            no such file or folder           kAlreadyExists      it is there already
//     kResourceExhausted   disk or disk quota full          kInternal           the device failed (EIO)
//     kDataLoss            fewer bytes than expected        kUnavailable        too many open files, no
//     memory kPermissionDenied, kFailedPrecondition                as the system says (read-only, not a
//     folder, ...)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::store {

/// What direct reads need of offsets, sizes and buffers, in bytes.
inline constexpr int64_t kDirectAlignment = 4096;

/// An open file; closed when destroyed. ReadAt, Size and descriptor may be called from any thread.
class File {
 public:
  virtual ~File() = default;

  /// Reads at most out.size() bytes, returns how many: 0 only at the end of the file or for an empty `out`;
  /// otherwise it may be fewer than asked for, for no reason.
  virtual absl::StatusOr<int64_t> ReadAt(int64_t offset, absl::Span<std::byte> out) = 0;
  /// Writes at least one byte of `bytes`, returns how many.
  virtual absl::StatusOr<int64_t> WriteAt(int64_t offset, absl::Span<const std::byte> bytes) = 0;
  /// When it returns OK, what was written survives a power failure (the file's name only if its folder was
  /// synced too). After an error nothing is known of the file's contents: don't try again, write another.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;

  /// Reads bypass the page cache: offset, size and address must be multiples of kDirectAlignment.
  virtual bool direct() const = 0;
  /// For io_uring; -1 when there is none and only ReadAt reads.
  virtual int descriptor() const = 0;
  virtual const std::string& path() const = 0;
};

enum class OpenMode : uint8_t {
  kRead,
  kReadDirect,  // past the page cache, or through it where the file system refuses that: see File::direct
  kCreate,      // for writing; kAlreadyExists when the name is taken
};

/// Held until destroyed, or until the process ends however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Whether the file that it was taken by still has its name. Where it was removed, or another stands there,
  /// somebody else may take the lock.
  virtual bool InPlace() const { return true; }
};

struct FolderItem {
  std::string name;  // without the folder
  bool is_folder = false;
  bool is_file = false;  // a regular file; false for links, sockets, ...
};

struct Space {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // to this process
};

/// Thread-safe. Must outlive the files opened through it.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  /// Replaces `to` at once: whoever opens it sees the old or the new file.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  /// Who has the file open keeps reading it.
  virtual absl::Status Unlink(const std::string& path) = 0;
  /// kAlreadyExists when the name is taken, by whatever.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  /// When it returns OK, the names in the folder survive a power failure.
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  /// In any order, without "." and "..".
  virtual absl::StatusOr<std::vector<FolderItem>> List(const std::string& path) = 0;
  virtual absl::StatusOr<Space> SpaceOf(const std::string& path) = 0;
  /// Whether this process may make and remove files in a folder, as far as its permissions tell. OK where
  /// they are not known.
  virtual absl::Status CheckWritable(const std::string& /*path*/) { return absl::OkStatus(); }
  /// Takes the lock that `path` stands for, creating the file if need be, and leaves `owner` in it for people
  /// to read, whose first word is the same for all owners. kFailedPrecondition, naming the path and what was
  /// found in it, when someone else holds it, or when it begins otherwise: then it is no lock, and stays.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, std::string_view owner) = 0;
};

/// The machine's. Never destroyed.
FileSystem& PosixFileSystem();

/// Fills `out`. kDataLoss when the file ends before that.
absl::Status ReadFully(File& file, int64_t offset, absl::Span<std::byte> out);
absl::Status WriteFully(File& file, int64_t offset, absl::Span<const std::byte> bytes);
/// The folder that `path`, written without a slash at its end, lies in.
std::string FolderAbove(const std::string& path);
/// MakeFolder for `path` and every missing folder above it, durably. OK when it is there.
absl::Status MakeFolders(FileSystem& fs, const std::string& path);

/// Where a read that may come in pieces has got to. A direct read that stopped in the middle of a block goes
/// on from the block's start.
class ReadProgress {
 public:
  ReadProgress(const File& file, int64_t size_bytes) : direct_(file.direct()), size_(size_bytes) {}

  bool complete() const { return have_ == size_; }
  int64_t next() const { return next_; }  // read from here to the end; relative to the read's start
  /// `num_bytes` more were read. kDataLoss when that shows that the file has ended.
  absl::Status Advance(const File& file, int64_t num_bytes);

 private:
  bool direct_;
  int64_t size_;
  int64_t have_ = 0;
  int64_t next_ = 0;
};

}  // namespace kvblend::store
