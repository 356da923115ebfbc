// Which questions of which data files one run of the bench asks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/bench/dataset.h"

namespace kvblend::server::cli {

struct BenchData {
  std::string label;  // file name without folder and ending
  std::vector<BenchQuestion> questions;
};

struct BenchTask {
  std::string data;  // label
  int index = 0;     // in the data file, from 0
  BenchQuestion question;
};

/// One part of `count`, from 0.
struct Shard {
  int index = 0;
  int count = 1;
};

/// "1/3": the first of three. kInvalidArgument for anything else.
absl::StatusOr<Shard> ParseShard(const std::string& text);

/// kInvalidArgument when two files have one label; else as LoadQuestions.
absl::StatusOr<std::vector<BenchData>> LoadBenchData(const std::vector<std::string>& paths);

/// Per file `count` questions (0: all) from the one with index `first`; of these, over all files together,
/// every shard.count-th. kInvalidArgument when a file ends before `first`.
absl::StatusOr<std::vector<BenchTask>> SelectTasks(const std::vector<BenchData>& data, int first, int count,
                                                   Shard shard);

}  // namespace kvblend::server::cli
