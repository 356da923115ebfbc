// kvblend model fetch.
#pragma once

#include "server/cli/command.h"

namespace kvblend::server::cli {

/// Adds `fetch` to the command `model`.
void AddModelFetchCommand(CLI::App& model, CommandContext& context);

}  // namespace kvblend::server::cli
