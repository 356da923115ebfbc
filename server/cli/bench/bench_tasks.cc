#include "server/cli/bench/bench_tasks.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {

absl::StatusOr<Shard> ParseShard(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  Shard shard;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &shard.index) || shard.index < 1 ||
      !absl::SimpleAtoi(parts[1], &shard.count) || shard.index > shard.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard is '", text, "'; allowed: I/N with I from 1 to N, such as 1/3"));
  }
  --shard.index;
  return shard;
}

absl::StatusOr<std::vector<BenchData>> LoadBenchData(const std::vector<std::string>& paths) {
  std::vector<BenchData> data;
  for (const std::string& path : paths) {
    BenchData loaded{.label = std::filesystem::path(path).stem().string(), .questions = {}};
    for (const BenchData& other : data) {
      if (other.label != loaded.label) continue;
      return absl::InvalidArgumentError(absl::StrCat("two data files are called '", loaded.label,
                                                     "', by which results name them; rename one"));
    }
    KVBLEND_ASSIGN_OR_RETURN(loaded.questions, LoadQuestions(path));
    data.push_back(std::move(loaded));
  }
  return data;
}

absl::StatusOr<std::vector<BenchTask>> SelectTasks(const std::vector<BenchData>& data, int first, int count,
                                                   Shard shard) {
  std::vector<BenchTask> tasks;
  int position = 0;
  for (const auto& [label, questions] : data) {
    const int size = static_cast<int>(questions.size());
    if (first >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("first is ", first, ", but ", label, " has ", size, " questions, counted from 0"));
    }
    const int end = count > 0 ? first + std::min(count, size - first) : size;
    for (int i = first; i < end; ++i, ++position) {
      if (position % shard.count != shard.index) continue;
      tasks.push_back({.data = label, .index = i, .question = questions[i]});
    }
  }
  return tasks;
}

}  // namespace kvblend::server::cli
