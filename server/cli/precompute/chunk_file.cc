#include "server/cli/precompute/chunk_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/terminal.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {

ChunkFile::ChunkFile(const std::string& path)
    : path_(path), part_path_(IsPipeOrDevice(path) ? path : absl::StrCat(path, ".part")) {}

absl::StatusOr<std::unique_ptr<ChunkFile>> ChunkFile::Create(const std::string& path,
                                                             std::ostream& standard_output) {
  std::unique_ptr<ChunkFile> file(new ChunkFile(path));
  if (path == "-") {
    file->stream_ = &standard_output;
    return file;
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {  // said now, and not when all is done
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": it is a folder"));
  }
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
  line["begin_byte"] = document.begin_byte + chunk.begin_byte();
  line["end_byte"] = document.begin_byte + chunk.end_byte();
  line["num_tokens"] = chunk.num_tokens();
  const std::string json = JsonLine(line) + "\n";  // paths may be no UTF-8
  if (stream_ == nullptr) return WriteAll(file_, path_, json);
  *stream_ << json << std::flush;
  return absl::OkStatus();  // the command line looks at its end whether standard output has taken all
}

absl::Status ChunkFile::Finish() {
  if (stream_ != nullptr) return absl::OkStatus();
  if (part_path_ != path_ && std::rename(part_path_.c_str(), path_.c_str()) != 0) {
    return WriteError(path_, errno);
  }
  file_ = server::Descriptor();
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
