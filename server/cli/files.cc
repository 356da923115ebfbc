#include "server/cli/files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/text/utf8.h"

namespace kvblend::server::cli {

absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is a folder"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    const std::string message = absl::StrCat("cannot read ", path, ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  }
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

absl::StatusOr<std::string> ReadTextOrStdin(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(std::string text, ReadFileOrStdin(path));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8Of(path == "-" ? "standard input" : path, text));
  return text;
}

absl::Status CheckUtf8Of(absl::string_view what, std::string_view text) {
  const auto invalid = text::FirstInvalidUtf8(text);
  if (!invalid.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is not valid UTF-8 at byte ", *invalid, " of ",
                                                 text.size(), "; allowed: UTF-8 text"));
}

bool IsPipeOrDevice(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_other(std::filesystem::status(path, ignored));
}

absl::Status CheckWritable(const std::string& path) {
  // Opening a pipe would end what its reader waits for.
  if (IsPipeOrDevice(path)) return absl::OkStatus();
  std::error_code ignored;
  const bool is_new = !std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  file.close();
  if (is_new) std::filesystem::remove(path, ignored);
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

}  // namespace kvblend::server::cli
