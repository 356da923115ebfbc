#include "server/cli/bench/result_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/cli/files.h"
#include "server/files/open_file.h"

namespace kvblend::server::cli {
namespace {

using QuestionId = std::pair<std::string, int>;  // data file, index

std::string Describe(const QuestionId& id) { return absl::StrCat("question ", id.second, " of ", id.first); }

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::Status FileError(const std::string& path, const char* what) {
  const int error = errno;
  return absl::Status(WriteError(path, error).code(),
                      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

/// What was written whole: the content up to its last newline.
std::string_view WholeLines(std::string_view content) {
  return content.substr(0, content.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

absl::StatusOr<SavedResults> ParseResults(std::string_view content) {
  SavedResults results;
  std::map<QuestionId, int> seen;
  int number = 0;
  for (std::string_view rest = WholeLines(content); !rest.empty();) {
    const size_t size = rest.find('\n') + 1;
    const OrderedJson json =
        OrderedJson::parse(rest.substr(0, size), /*cb=*/nullptr, /*allow_exceptions=*/false);
    rest.remove_prefix(size);
    ++number;
    const absl::Status status = [&]() -> absl::Status {
      if (json.is_discarded()) return absl::InvalidArgumentError("is not valid JSON");
      if (number == 1) {
        KVBLEND_ASSIGN_OR_RETURN(results.settings, RunSettingsFromJson(json));
        return absl::OkStatus();
      }
      KVBLEND_ASSIGN_OR_RETURN(FinishedQuestion question, FinishedQuestionFromJson(json));
      if (question.rows.size() != results.settings.options.variants.size()) {
        return absl::InvalidArgumentError(absl::StrCat("has ", question.rows.size(),
                                                       " rows, the settings have ",
                                                       results.settings.options.variants.size()));
      }
      if (seen[{question.data, question.index}]++ > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe({question.data, question.index}), " is there twice"));
      }
      results.questions.push_back(std::move(question));
      return absl::OkStatus();
    }();
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  if (number == 0) return absl::InvalidArgumentError("no results of kvblend bench");
  return results;
}

absl::StatusOr<SavedResults> MergeResultFiles(const std::vector<std::string>& paths) {
  SavedResults merged;
  std::map<QuestionId, std::pair<std::string, FinishedQuestion>> questions;  // with the file each came from
  for (const std::string& path : paths) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(path));
    auto results = ParseResults(content);
    if (!results.ok()) return WithPath(path, results.status());
    if (path == paths.front()) {
      merged.settings = results->settings;
    } else if (const absl::Status same = CheckSameSettings(merged.settings, results->settings); !same.ok()) {
      return WithPath(path, same);
    }
    for (FinishedQuestion& question : results->questions) {
      const QuestionId id{question.data, question.index};
      const auto [it, added] = questions.try_emplace(id, path, std::move(question));
      if (!added) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(id), " is in both ", it->second.first, " and ", path));
      }
    }
  }
  for (auto& [id, entry] : questions) merged.questions.push_back(std::move(entry.second));
  return merged;
}

absl::StatusOr<std::vector<BenchTask>> TasksLeft(const std::vector<BenchTask>& tasks, int max_passages,
                                                 const std::vector<FinishedQuestion>& finished) {
  std::map<QuestionId, std::string> hashes;
  for (const FinishedQuestion& question : finished) hashes[{question.data, question.index}] = question.hash;
  std::vector<BenchTask> left;
  for (const BenchTask& task : tasks) {
    const auto it = hashes.find({task.data, task.index});
    if (it == hashes.end()) {
      left.push_back(task);
    } else if (it->second != HashOf(task.question, max_passages)) {
      return absl::FailedPreconditionError(
          absl::StrCat(Describe(it->first), " is another one in the data file than in the results"));
    }
  }
  return left;
}

absl::StatusOr<ResultFile> ResultFile::Open(const std::string& path, const RunSettings& settings,
                                            std::vector<FinishedQuestion>& finished) {
  KVBLEND_RETURN_IF_ERROR(CheckReplaceable("--resume", path));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) return FileError(path, "open");
  ResultFile file(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": another run writes to it"));
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::string content, ReadNamed(path, Allowed::kFile));
  const std::string head = absl::StrCat(JsonLine(ToJson(settings)), "\n");
  if (absl::StartsWith(head, content)) {  // new, or killed within its first line
    if (ftruncate(fd, 0) != 0) return FileError(path, "shorten");
    KVBLEND_RETURN_IF_ERROR(file.Write(head));
    return file;
  }
  auto saved = ParseResults(content);
  if (!saved.ok()) return WithPath(path, saved.status());
  const absl::Status same = CheckSameSettings(settings, saved->settings);
  if (!same.ok()) return WithPath(path, same);
  const auto whole = static_cast<off_t>(WholeLines(content).size());
  if (ftruncate(fd, whole) != 0 || lseek(fd, whole, SEEK_SET) != whole) return FileError(path, "shorten");
  finished = std::move(saved->questions);
  return file;
}

ResultFile::ResultFile(ResultFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

ResultFile& ResultFile::operator=(ResultFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

ResultFile::~ResultFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status ResultFile::Append(const FinishedQuestion& question) {
  return Write(absl::StrCat(JsonLine(ToJson(question)), "\n"));
}

absl::Status ResultFile::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return FileError(path_, "write to");
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::cli
