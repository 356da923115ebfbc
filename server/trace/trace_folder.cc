#include "server/trace/trace_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

constexpr char kPrefix[] = "kvblend-";
constexpr char kSuffix[] = ".json";
constexpr char kUnfinished[] = ".part";

absl::Status FileError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status WriteBytes(const std::string& path, std::string_view bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return FileError("create", path);
  absl::Status status;
  while (!bytes.empty() && status.ok()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      status = FileError("write", path);
    }
  }
  if (close(file) != 0 && status.ok()) status = FileError("write", path);
  return status;
}

}  // namespace

absl::Status WriteWholeFile(const std::string& path, std::string_view bytes) {
  const std::string part = absl::StrCat(path, kUnfinished);
  absl::Status status = WriteBytes(part, bytes);
  if (status.ok() && std::rename(part.c_str(), path.c_str()) != 0) status = FileError("rename to", path);
  if (!status.ok()) unlink(part.c_str());
  return status;
}

absl::StatusOr<std::unique_ptr<TraceFolder>> TraceFolder::Open(const std::string& path,
                                                               const Limits& limits) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::unique_ptr<TraceFolder> folder(new TraceFolder(path, limits));
  std::vector<File> found;
  for (std::filesystem::directory_iterator next(path, error), end; !error && next != end;
       next.increment(error)) {
    const std::string name = next->path().filename();
    if (!absl::StartsWith(name, kPrefix)) continue;
    std::error_code gone;  // somebody else may clean up
    if (absl::EndsWith(name, absl::StrCat(kSuffix, kUnfinished))) {
      std::filesystem::remove(next->path(), gone);
    } else if (absl::EndsWith(name, kSuffix)) {
      const auto bytes = next->file_size(gone);
      if (!gone) found.push_back({name, static_cast<int64_t>(bytes)});
    }
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace-dir is ", path, ": ", error.message(), "; allowed: a folder to write to"));
  }
  // Tried at the start, so that the error is not told by lost traces alone. A full disk may have room again.
  const std::string probe = absl::StrCat(path, "/", kPrefix, "probe", kSuffix, kUnfinished);
  if (absl::Status status = WriteBytes(probe, ""); !status.ok() && !absl::IsResourceExhausted(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace-dir is ", path, ": ", status.message(), "; allowed: a folder to write to"));
  }
  unlink(probe.c_str());
  std::sort(found.begin(), found.end(), [](const File& a, const File& b) { return a.name < b.name; });
  for (File& file : found) {
    folder->bytes_ += file.bytes;
    folder->files_.push_back(std::move(file));
  }
  folder->MakeRoom(0);
  return folder;
}

void TraceFolder::MakeRoom(int64_t bytes) {
  const int64_t more = bytes > 0 ? 1 : 0;
  while (!files_.empty() && (num_files() + more > limits_.max_files || bytes_ + bytes > limits_.max_bytes)) {
    unlink(absl::StrCat(path_, "/", files_.front().name).c_str());
    bytes_ -= files_.front().bytes;
    files_.pop_front();
  }
}

absl::Status TraceFolder::Write(absl::Time time, std::string_view trace_id, std::string_view json) {
  const auto bytes = static_cast<int64_t>(json.size());
  if (bytes > limits_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a trace has ", bytes, " bytes; allowed: at most ", limits_.max_bytes, " in ", path_));
  }
  MakeRoom(bytes);
  const std::string name =
      absl::StrCat(kPrefix, absl::FormatTime("%Y%m%dT%H%M%E9SZ", time, absl::UTCTimeZone()), "-",
                   absl::string_view(trace_id.data(), trace_id.size()), kSuffix);
  const std::string file = absl::StrCat(path_, "/", name);
  absl::Status status = WriteWholeFile(file, json);
  if (absl::IsNotFound(status)) {  // somebody has removed the folder: what cleans temporary ones, for one
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    status = WriteWholeFile(file, json);
  }
  if (!status.ok()) return status;
  files_.push_back({name, bytes});
  bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace kvblend::server
