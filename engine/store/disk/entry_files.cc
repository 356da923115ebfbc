#include "engine/store/disk/entry_files.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/disk/folder_files.h"
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

absl::Span<const std::byte> AsBytes(std::string_view bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

constexpr int kMaxSyncThreads = 16;

/// Of the folder that an entry's file is in.
uint16_t NumberOf(const ChunkKey& key) {
  return static_cast<uint16_t>(key.digest()[0] << 8 | key.digest()[1]);
}

absl::Status MakeUnlessThere(FileSystem& fs, const std::string& folder) {
  const absl::Status made = fs.MakeFolder(folder);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
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

// --- writing

absl::Status EntryFiles::Write(const ChunkKey& key, std::string_view header, const ChunkKv& kv,
                               bool replaces) {
  const std::string temporary = paths_.Temporary(key, next_temporary_++);
  const std::string path = paths_.Entry(key);
  absl::StatusOr<std::unique_ptr<File>> file = fs_.Open(temporary, OpenMode::kCreate);
  if (!file.ok()) return file.status();
  absl::Status status = WriteFully(**file, 0, AsBytes(header));
  auto offset = static_cast<int64_t>(header.size());
  for (int32_t layer = 0; status.ok() && layer < kv.format().num_layers; ++layer) {
    status = WriteFully(**file, offset, kv.LayerBytes(layer));
    offset += kv.layer_bytes();
  }
  // Before the rename: a name must never stand for bytes that may still be lost.
  if (status.ok()) status = (*file)->Sync();
  file->reset();
  if (status.ok()) status = MakeFolder(key);
  if (status.ok()) status = fs_.Rename(temporary, path);
  if (!status.ok()) {
    fs_.Unlink(temporary).IgnoreError();
    return status;
  }
  status = fs_.SyncFolder(paths_.Folder(key));
  if (status.ok()) {
    Remember(key);
  } else if (!replaces) {
    // A replaced entry stays: both the old and the new file hold the chunk's KV.
    fs_.Unlink(path).IgnoreError();
  }
  return status;
}

absl::Status EntryFiles::MakeFolder(const ChunkKey& key) {
  bool is_outer_durable = false;
  {
    absl::MutexLock lock(&mutex_);
    if (durable_folders_.contains(NumberOf(key))) return absl::OkStatus();
    is_outer_durable = durable_outer_folders_.test(key.digest()[0]);
  }
  // Only folders that this process has synced are relied on: another may have made them, and renamed files
  // into them, and died before it synced them.
  const std::string outer = paths_.OuterFolder(key);
  if (!is_outer_durable) {
    KVBLEND_RETURN_IF_ERROR(MakeUnlessThere(fs_, outer));
    KVBLEND_RETURN_IF_ERROR(fs_.SyncFolder(paths_.Entries()));
    absl::MutexLock lock(&mutex_);
    durable_outer_folders_.set(key.digest()[0]);
  }
  KVBLEND_RETURN_IF_ERROR(MakeUnlessThere(fs_, paths_.Folder(key)));
  return fs_.SyncFolder(outer);
}

absl::Status EntryFiles::MakeFolderDurable(const ChunkKey& key) {
  {
    absl::MutexLock lock(&mutex_);
    if (durable_folders_.contains(NumberOf(key))) return absl::OkStatus();
  }
  KVBLEND_RETURN_IF_ERROR(fs_.SyncFolder(paths_.Folder(key)));
  KVBLEND_RETURN_IF_ERROR(MakeFolder(key));
  Remember(key);
  return absl::OkStatus();
}

void EntryFiles::Remember(const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  durable_folders_.insert(NumberOf(key));
}

void EntryFiles::ForgetFolders() {
  absl::MutexLock lock(&mutex_);
  durable_folders_.clear();
  durable_outer_folders_.reset();
}

absl::Status EntryFiles::SetPinned(const ChunkKey& key, bool pinned) {
  const std::string path = paths_.Pin(key);
  absl::Status status;
  if (pinned) {
    status = fs_.Open(path, OpenMode::kCreate).status();
    if (absl::IsAlreadyExists(status)) status = absl::OkStatus();
  } else {
    status = UnlinkIfThere(fs_, path);
  }
  KVBLEND_RETURN_IF_ERROR(status);
  status = fs_.SyncFolder(paths_.Folder(key));
  if (status.ok()) return status;
  // Undone: the caller goes on as before, and so must the next start.
  (pinned ? fs_.Unlink(path) : fs_.Open(path, OpenMode::kCreate).status()).IgnoreError();
  return status;
}

// --- opening and removing

absl::StatusOr<EntryFiles::OpenFile> EntryFiles::Open(const ChunkKey& key) const {
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs_.Open(paths_.Entry(key), OpenMode::kReadDirect));
  absl::StatusOr<EntryHeader> header = ReadHeader(*file, key);
  if (absl::IsUnimplemented(header.status())) return absl::DataLossError(header.status().message());
  KVBLEND_RETURN_IF_ERROR(header.status());
  return OpenFile{std::move(file), *std::move(header)};
}

absl::StatusOr<std::shared_ptr<File>> EntryFiles::OpenAgain(const ChunkKey& key) const {
  return fs_.Open(paths_.Entry(key), OpenMode::kReadDirect);
}

absl::Status EntryFiles::LookFor(const ChunkKey& key) const {
  return fs_.Open(paths_.Entry(key), OpenMode::kRead).status();
}

absl::Status EntryFiles::Unlink(const ChunkKey& key) {
  absl::Status status = UnlinkIfThere(fs_, paths_.Entry(key));
  if (!status.ok()) ++delete_failures_;
  return status;
}

absl::Status EntryFiles::Erase(const ChunkKey& key) { return EraseAll(absl::MakeConstSpan(&key, 1))[0]; }

std::vector<absl::Status> EntryFiles::EraseAll(absl::Span<const ChunkKey> keys) {
  struct Folder {
    std::string path;
    absl::Status synced;
  };
  std::vector<absl::Status> statuses;
  std::vector<Folder> folders;
  absl::flat_hash_map<uint16_t, size_t> folder_of;  // NumberOf a key -> its index
  for (const ChunkKey& key : keys) {
    // The pin last: a pin without an entry is removed at start; an entry that lost its pin would be unpinned.
    absl::Status status = UnlinkIfThere(fs_, paths_.Entry(key));
    if (status.ok()) status = UnlinkIfThere(fs_, paths_.Pin(key));
    if (status.ok() && folder_of.try_emplace(NumberOf(key), folders.size()).second) {
      folders.push_back({paths_.Folder(key), absl::OkStatus()});
    }
    statuses.push_back(std::move(status));
  }
  // Nearly every key has a folder of its own, and a sync is mostly waiting, which the disk does for many at
  // once.
  ForEachInParallel(
      folders.size(), kMaxSyncThreads, [] { return true; },
      [&](size_t i) {
        folders[i].synced = fs_.SyncFolder(folders[i].path);
        return absl::OkStatus();
      })
      .IgnoreError();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (statuses[i].ok()) statuses[i] = folders[folder_of.at(NumberOf(keys[i]))].synced;
    // Somebody has removed the folder with all that was in it.
    if (absl::IsNotFound(statuses[i])) statuses[i] = absl::OkStatus();
    if (!statuses[i].ok()) ++delete_failures_;
  }
  return statuses;
}

absl::Status EntryFiles::Quarantine(const ChunkKey& key) {
  absl::Status status;
  const bool has_room = ++quarantined_files_ <= max_quarantined_files_;
  if (!has_room || !fs_.Rename(paths_.Entry(key), paths_.Quarantine(key)).ok()) {
    // What can't be set aside is deleted; what can't be deleted either is found damaged again at the next
    // start.
    --quarantined_files_;
    status = Unlink(key);
  }
  fs_.Unlink(paths_.Pin(key)).IgnoreError();
  return status;
}

}  // namespace kvblend::store::internal
