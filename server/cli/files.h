// Reading and writing whole files for the command line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvblend::server::cli {

/// The whole content of a file, or of standard input for "-"; a pipe that somebody writes to and a device are
/// read as well, if they end within 1 GiB. kNotFound when there is no such file; kInvalidArgument when it
/// cannot be read, naming what it is.
absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path);

/// The same of a text for a message, without a byte order mark: kInvalidArgument, naming the file, when it is
/// not UTF-8.
absl::StatusOr<std::string> ReadTextOrStdin(const std::string& path);

/// The same of a text that a flag names as a file, as --system-file: one newline at its end, which editors
/// write, is no part of it. Files of chunks are not such texts: all that is in them is the chunk.
absl::StatusOr<std::string> ReadFlagText(const std::string& path);
/// What the help of such flags ends with.
inline constexpr char kFlagTextHelp[] = "one newline at its end is no part of it";

/// How many bytes before a file's text are a byte order mark, as editors on Windows write it: 3 or 0.
size_t ByteOrderMarkSize(std::string_view text);

/// Whether a message can carry `text`: protobuf's library would complain of it on standard error.
/// kInvalidArgument naming `what`, as "--question", and the byte.
absl::Status CheckUtf8Of(absl::string_view what, std::string_view text);

/// Whether WriteFile could write there, asked before the work whose result goes there. Leaves no new file
/// behind. kInvalidArgument, naming path and reason.
absl::Status CheckWritable(const std::string& path);

/// Replaces the file. kInvalidArgument, naming path and reason, when it cannot be written.
absl::Status WriteFile(const std::string& path, std::string_view content);

}  // namespace kvblend::server::cli
