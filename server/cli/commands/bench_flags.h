// The flags of kvblend bench, and what is made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/command.h"

namespace CLI {
class Option;
}

namespace kvblend::server::cli {

struct BenchFlags {
  Connection connection;
  std::vector<std::string> data;
  int first = 0;
  int n = 0;  // 0: all
  std::string shard = "1/1";
  std::vector<std::string> rows;  // empty: made of the lists below
  std::vector<std::string> modes = {"full", "prefix", "reuse", "blend"};
  std::vector<std::string> policies = {"query"};
  std::vector<std::string> ratios = {"0.15"};
  std::vector<int32_t> query_layers = {0};
  bool anchored = false;
  bool isolated = false;
  std::vector<std::string> corrections = {"on"};
  std::string against;
  std::vector<std::string> measures = {"ttft", "kl", "nll", "f1"};
  std::string reference_cache;
  std::string resume;
  std::vector<std::string> merge;
  std::string json;
  std::string per_question;
  BenchOptions options;
  // What CheckBenchFlags looks at.
  std::vector<const CLI::Option*> combination_options;
  std::vector<const CLI::Option*> measuring_options;
};

void AddBenchFlags(CLI::App& command, BenchFlags& flags);

/// kInvalidArgument for flags that have no meaning together: what measures beside --merge, the lists of which
/// rows are combined beside --rows, neither --data nor --merge.
absl::Status CheckBenchFlags(const BenchFlags& flags);

/// The rows, the one that they are held against added at the end if it is not among them.
absl::StatusOr<BenchOptions> MakeBenchOptions(const BenchFlags& flags);

/// Index of the row that is called `against`; nothing when that is empty. kInvalidArgument: it is not among
/// them.
absl::StatusOr<std::optional<size_t>> FindRow(const std::vector<BenchVariant>& rows,
                                              const std::string& against);

}  // namespace kvblend::server::cli
