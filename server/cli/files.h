// Reading and writing whole files for the command line.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend::server::cli {

/// The whole content of a file, or of standard input for "-". kNotFound when there is no such file;
/// kInvalidArgument when it is a folder or cannot be read.
absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path);

/// Whether WriteFile could write there, asked before the work whose result goes there. Leaves no new file behind.
/// kInvalidArgument, naming path and reason.
absl::Status CheckWritable(const std::string& path);

/// Replaces the file. kInvalidArgument, naming path and reason, when it cannot be written.
absl::Status WriteFile(const std::string& path, std::string_view content);

}  // namespace kvblend::server::cli
