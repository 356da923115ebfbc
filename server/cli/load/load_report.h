// The figures of a load as a table for people and as JSON for machines.
#pragma once

#include <string>
#include <vector>

#include "server/cli/load/load_runner.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// "unloaded", "0.5/s", "16 clients", "trace".
std::string LoadName(const LoadPoint& point);

/// What rates are of: "requests", or "conversations" where those have more than one.
const char* BegunBy(const LoadRun& run);

/// One line of the JSON.
OrderedJson ToJson(const LoadPoint& point, const std::vector<BenchVariant>& modes);
OrderedJson ToJson(const HighestRate& highest, const std::vector<BenchVariant>& modes);
/// One request, for studies of single ones.
OrderedJson ToJson(const LoadPoint& point, const LoadRecord& record, const std::vector<BenchVariant>& modes);

/// Aligned columns with a header of two lines; below it what went wrong, and what a search found.
std::string FormatLoadTable(const LoadRun& run, const std::vector<BenchVariant>& modes);

/// "query:0.15: p95 of TTFT stays within 1 s up to 1.31 requests/s, and not at 1.4: 6.2x of full", one per
/// search; the first mode is what the others are compared with.
std::vector<std::string> HighestRateLines(const LoadRun& run, const std::vector<BenchVariant>& modes);

}  // namespace kvblend::server::cli
