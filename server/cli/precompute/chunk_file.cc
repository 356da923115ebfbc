#include "server/cli/precompute/chunk_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/terminal.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {

ChunkFile::ChunkFile(const std::string& path)
    : path_(path), part_path_(IsPipeOrDevice(path) ? path : absl::StrCat(path, ".part")) {}

absl::StatusOr<std::unique_ptr<ChunkFile>> ChunkFile::Create(const std::string& path) {
  std::unique_ptr<ChunkFile> file(new ChunkFile(path));
  KVBLEND_ASSIGN_OR_RETURN(file->file_, OpenToWrite(file->part_path_));
  return file;
}

ChunkFile::~ChunkFile() {
  if (file_.get() >= 0 && part_path_ != path_) std::remove(part_path_.c_str());
}

absl::Status ChunkFile::Write(const Document& document, const v1::DocumentChunk& chunk,
                              std::string_view text) {
  OrderedJson line = {{"key", chunk.key()}, {"text", text}, {"path", document.path}};
  if (!document.id.empty()) line["id"] = document.id;
  line["begin_byte"] = chunk.begin_byte();
  line["end_byte"] = chunk.end_byte();
  line["num_tokens"] = chunk.num_tokens();
  return WriteAll(file_, path_, JsonLine(line) + "\n");  // paths may be no UTF-8
}

absl::Status ChunkFile::Finish() {
  if (part_path_ != path_ && std::rename(part_path_.c_str(), path_.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  file_ = server::Descriptor();
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
