// Flags for an engine's settings, the same ones in kvblend-server and kvblend.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/options.h"

namespace kvblend::server {

/// Adds a flag for every row of engine/api/option_table.h, with the values of `options` as defaults, and one
/// for the file of Redis's password, which is read when flags are parsed. `options` must outlive the app.
/// Values are converted then, and checked by FinishEngineOptions.
std::vector<CLI::Option*> AddEngineFlags(CLI::App& app, EngineOptions& options);

/// After parsing: adds what is no flag (Redis's password, from the environment), and checks the whole.
/// kInvalidArgument naming setting, value and what is allowed.
absl::Status FinishEngineOptions(EngineOptions& options);

/// Makes an option of an integer one of bytes, with or without a unit: 4GiB is 4 * 2^30 bytes, 4GB is 4 *
/// 10^9, in any case.
CLI::Option* AsBytes(CLI::Option* option);

}  // namespace kvblend::server
