// A folder of timelines, of which the oldest go when there are too many.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvblend::server {

/// Writes "kvblend-TIME-TRACE.json", each as a whole: under another name first. Files of other names are left
/// alone. Not thread-safe.
class TraceFolder {
 public:
  struct Limits {
    int64_t max_files = 1000;
    int64_t max_bytes = int64_t{256} << 20;
  };

  /// Makes the folder where there is none, and finds what an earlier server left there, which counts.
  /// kInvalidArgument naming the folder and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<TraceFolder>> Open(const std::string& path, const Limits& limits);

  /// kResourceExhausted for what is larger than the folder may be; the system's error, naming the file, of
  /// which nothing is left then.
  absl::Status Write(absl::Time time, std::string_view trace_id, std::string_view json);

  int64_t num_files() const { return static_cast<int64_t>(files_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct File {
    std::string name;
    int64_t bytes;
  };

  TraceFolder(std::string path, const Limits& limits) : path_(std::move(path)), limits_(limits) {}
  /// Removes the oldest until there is room for one more of so many bytes.
  void MakeRoom(int64_t bytes);

  const std::string path_;
  const Limits limits_;
  std::deque<File> files_;  // the oldest first
  int64_t bytes_ = 0;
};

/// Writes a file as a whole. The system's error, naming the file.
absl::Status WriteWholeFile(const std::string& path, std::string_view bytes);

}  // namespace kvblend::server
