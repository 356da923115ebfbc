#include "server/cli/precompute/chunk_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/cli/files.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

ChunkFile::ChunkFile(const std::string& path)
    : path_(path), part_path_(IsPipeOrDevice(path) ? path : absl::StrCat(path, ".part")) {}

absl::StatusOr<std::unique_ptr<ChunkFile>> ChunkFile::Create(const std::string& path) {
  std::unique_ptr<ChunkFile> file(new ChunkFile(path));
  errno = 0;
  file->file_.open(file->part_path_, std::ios::binary | std::ios::trunc);
  if (!file->file_) return file->Failed();
  return file;
}

ChunkFile::~ChunkFile() {
  if (!file_.is_open()) return;
  file_.close();
  if (part_path_ != path_) std::remove(part_path_.c_str());
}

absl::Status ChunkFile::Write(const Document& document, const v1::DocumentChunk& chunk,
                              std::string_view text) {
  OrderedJson line = {{"key", chunk.key()}, {"text", text}, {"path", document.path}};
  if (!document.id.empty()) line["id"] = document.id;
  line["begin_byte"] = chunk.begin_byte();
  line["end_byte"] = chunk.end_byte();
  line["num_tokens"] = chunk.num_tokens();
  errno = 0;
  file_ << JsonLine(line) << '\n';  // paths may be no UTF-8
  return file_ ? absl::OkStatus() : Failed();
}

absl::Status ChunkFile::Finish() {
  errno = 0;
  file_.flush();
  if (!file_) return Failed();
  if (part_path_ != path_ && std::rename(part_path_.c_str(), path_.c_str()) != 0) return Failed();
  file_.close();
  return absl::OkStatus();
}

absl::Status ChunkFile::Failed() const {
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
}

}  // namespace kvblend::server::cli
