// kvblend chunks put.
#pragma once

#include "server/cli/command.h"

namespace kvblend::server::cli {

void AddChunksPutCommand(CLI::App& chunks, CommandContext& context);

}  // namespace kvblend::server::cli
