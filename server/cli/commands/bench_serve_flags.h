// The flags of kvblend bench serve, and what is made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/command.h"
#include "server/cli/load/conversations.h"
#include "server/cli/load/load_runner.h"

namespace kvblend::server::cli {

struct BenchServeFlags {
  Connection connection;
  std::vector<std::string> data;
  int first = 0;
  int n = 0;         // 0: all
  int passages = 0;  // 0: all
  int distinct = 0;  // 0: as many as there are questions
  int turns = 1;
  std::optional<double> zipf;
  std::string output_tokens = "32";
  std::vector<std::string> rows = {"full", "query:0.15", "query:0.05"};

  std::vector<double> rates;
  std::string arrivals = "poisson";
  std::string trace;
  std::vector<int> clients;
  std::optional<double> search;
  std::optional<double> duration;
  std::optional<int64_t> requests;
  double think = 0;
  std::optional<double> timeout;
  bool side_by_side = false;
  std::optional<int> unloaded;
  bool check_answers = false;
  uint64_t seed = 1;

  std::optional<double> slo_ttft;
  std::optional<double> slo_itl;
  std::string tenant_namespace = "kvblend-load";
  bool cold = false;
  bool keep_chunks = false;
  std::string json;
  std::string html;
  std::string per_request;
};

void AddBenchServeCommand(CLI::App& bench, CommandContext& context);
void AddBenchServeFlags(CLI::App& command, BenchServeFlags& flags);

/// kInvalidArgument for flags without a meaning together, and for values out of range.
absl::StatusOr<LoadOptions> MakeLoadOptions(const BenchServeFlags& flags);
absl::StatusOr<ConversationOptions> MakeConversationOptions(const BenchServeFlags& flags);

/// What was measured, in words, for the head of the page.
std::string DescribeLoad(const BenchServeFlags& flags, const LoadOptions& options);

}  // namespace kvblend::server::cli
