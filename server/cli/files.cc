#include "server/cli/files.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/utf8.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {

absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  return ReadNamed(path, Allowed::kFileOrStream);
}

absl::StatusOr<std::string> ReadTextOrStdin(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(std::string text, ReadFileOrStdin(path));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8Of(path == "-" ? "standard input" : path, text));
  text.erase(0, ByteOrderMarkSize(text));
  return text;
}

absl::StatusOr<std::string> ReadFlagText(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(std::string text, ReadTextOrStdin(path));
  if (text.ends_with('\n')) text.erase(text.size() - (text.ends_with("\r\n") ? 2 : 1));
  return text;
}

size_t ByteOrderMarkSize(std::string_view text) { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

absl::Status CheckUtf8Of(absl::string_view what, std::string_view text) {
  const auto invalid = text::FirstInvalidUtf8(text);
  if (!invalid.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not valid UTF-8 at byte ", *invalid, " of ",
                                                 text.size(), "; allowed: UTF-8 text"));
}

absl::Status CheckWritable(const std::string& path) {
  // Opening a pipe would end what its reader waits for.
  if (IsPipeOrDevice(path)) return absl::OkStatus();
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  {
    // Not to wait for the reader of a pipe that is there by now.
    const server::Descriptor file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
    if (file.get() < 0) {
      return WriteError(path, errno);
    }
  }
  if (is_new) std::filesystem::remove(path, ignored);
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  KVBLEND_ASSIGN_OR_RETURN(const server::Descriptor file, OpenToWrite(path));
  return WriteAll(file, path, content);
}

}  // namespace kvblend::server::cli
