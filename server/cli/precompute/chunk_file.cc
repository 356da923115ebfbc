#include "server/cli/precompute/chunk_file.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/terminal.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {

namespace {

/// What the system said of the output, as commands say it of what they write.
absl::Status Explain(const std::string& path, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:  // another process writes it
      return status;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", status.message()));
    default:  // the disk is full, or fails
      return absl::FailedPreconditionError(absl::StrCat("cannot write ", path, ": ", status.message()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkFile>> ChunkFile::Create(const std::string& path,
                                                             std::ostream& standard_output) {
  std::unique_ptr<ChunkFile> file(new ChunkFile(path));
  std::error_code error;
  if (path == "-") {
    file->stream_ = &standard_output;
  } else if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": it is a folder"));
  } else if (IsPipeOrDevice(path)) {
    KVBLEND_ASSIGN_OR_RETURN(file->pipe_, OpenToWrite(path));
  } else {
    absl::StatusOr<kv::FileReplacement> replacement = kv::FileReplacement::Begin(path);
    KVBLEND_RETURN_IF_ERROR(Explain(path, replacement.status()));
    file->replacement_.emplace(*std::move(replacement));
  }
  return file;
}

absl::Status ChunkFile::Write(const Document& document, const v1::DocumentChunk& chunk,
                              std::string_view text) {
  OrderedJson line = {{"key", chunk.key()}, {"text", text}, {"path", document.path}};
  if (!document.id.empty()) line["id"] = document.id;
  line["begin_byte"] = document.begin_byte + chunk.begin_byte();
  line["end_byte"] = document.begin_byte + chunk.end_byte();
  line["num_tokens"] = chunk.num_tokens();
  const std::string json = JsonLine(line) + "\n";  // paths may be no UTF-8
  if (replacement_.has_value()) return Explain(path_, replacement_->Write(json));
  if (stream_ == nullptr) return WriteAll(pipe_, path_, json);
  *stream_ << json << std::flush;
  return absl::OkStatus();  // the command line looks at its end whether standard output has taken all
}

absl::Status ChunkFile::Finish() {
  return replacement_.has_value() ? Explain(path_, replacement_->Finish()) : absl::OkStatus();
}

}  // namespace kvblend::server::cli
