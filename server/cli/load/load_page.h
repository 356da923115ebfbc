// The figures of a load as a page: curves and a table in one file that asks for nothing else.
#pragma once

#include <string>
#include <vector>

#include "server/cli/load/load_runner.h"

namespace kvblend::server::cli {

/// Latencies and goodput against rate, and against clients, where more than one was measured; one line per
/// mode. Light or dark as the reader's system is. `title`: model and backend; `command`: what measured it;
/// all texts are escaped.
std::string LoadPage(const LoadRun& run, const std::vector<BenchVariant>& modes, const std::string& title,
                     const std::string& command);

}  // namespace kvblend::server::cli
