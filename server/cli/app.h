// The command line as a function, so that tests can run it with streams and an engine of their own.
#pragma once

#include <string>
#include <vector>

#include "server/cli/cancellation.h"
#include "server/cli/command.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// Runs one command; `arguments` without the program's name. Returns the exit code (exit_code.h).
int RunCommandLine(const std::vector<std::string>& arguments, const std::string& version, Terminal& terminal,
                   Cancellation& cancellation, CallsFactory make_calls);

}  // namespace kvblend::server::cli
