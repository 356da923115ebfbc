#pragma once

#include <CLI/CLI.hpp>

#include "server/cli/command.h"

namespace kvblend::server::cli {

/// `kvblend chunks prefetch`, as a subcommand of `chunks`.
void AddChunksPrefetchCommand(CLI::App& chunks, CommandContext& context);

}  // namespace kvblend::server::cli
