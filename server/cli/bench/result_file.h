// Results per question in a file of JSON lines, from which a run that was stopped goes on and which are
// merged: the settings of the run first, then one line per finished question.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/bench/bench_tasks.h"
#include "server/cli/bench/question_result.h"
#include "server/cli/bench/run_settings.h"

namespace kvblend::server::cli {

// NOLINTNEXTLINE(bugprone-exception-escape): moving JSON throws nothing
struct SavedResults {
  RunSettings settings;
  std::vector<FinishedQuestion> questions;
};

/// The whole lines of a file; a line without its end, where the writer was killed, is left out.
/// kInvalidArgument, naming the line, for anything else that is not as it was written.
absl::StatusOr<SavedResults> ParseResults(std::string_view content);

/// Reads the files and puts their questions together, ordered by data file and question. kFailedPrecondition
/// when settings differ; kInvalidArgument when two files have one question, or a file is not whole.
absl::StatusOr<SavedResults> MergeResultFiles(const std::vector<std::string>& paths);

/// The tasks that are not among the questions. kFailedPrecondition when one is but was another question then.
absl::StatusOr<std::vector<BenchTask>> TasksLeft(const std::vector<BenchTask>& tasks, int max_passages,
                                                 const std::vector<FinishedQuestion>& finished);

/// A file that results are appended to, locked against other processes meanwhile.
class ResultFile {
 public:
  /// Begins the file, or goes on with one of the same settings: `finished` then gets its questions. Errors as
  /// of ParseResults and CheckSameSettings; kFailedPrecondition when another process writes to it.
  static absl::StatusOr<ResultFile> Open(const std::string& path, const RunSettings& settings,
                                         std::vector<FinishedQuestion>& finished);
  ResultFile(ResultFile&& other) noexcept;
  ResultFile& operator=(ResultFile&& other) noexcept;
  ~ResultFile();

  absl::Status Append(const FinishedQuestion& question);

 private:
  ResultFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Write(std::string_view text);

  std::string path_;
  int fd_;
};

}  // namespace kvblend::server::cli
