#include "server/cli/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/cli/exit_code.h"

namespace kvblend::server::cli {
namespace {

constexpr char kDescription[] =
    "kvblend: serves prompts that are made of retrieved chunks, reusing the KV of every chunk";

constexpr char kFooter[] =
    R"(Exit codes: 0 done, 1 error, 2 wrong usage or a refused value, 3 no such file or chunk,
4 server unreachable, overloaded or too slow (try again), 5 done, but some of the input or of what is stored
is damaged, 130 interrupted.
Environment: KVBLEND_SERVER is the default of --server; KVBLEND_API_KEY is the key for a server that wants one; NO_COLOR switches colours off.

Examples:
  kvblend generate --chunk-file report.txt --question "What were the findings?"
  kvblend chunks put docs/*.txt
  kvblend precompute docs/ --output chunks.jsonl
  kvblend bench --model model.gguf --data tests/fixtures/musique_sample.json
  kvblend COMMAND --help
)";

}  // namespace

absl::StatusOr<Client> CommandContext::Connect(const Connection& connection) {
  KVBLEND_ASSIGN_OR_RETURN(std::shared_ptr<Calls> calls, make_calls(connection, cancellation, terminal));
  return Client(std::move(calls), cancellation);
}

CLI::App& AddCommand(CLI::App& parent, CommandContext& context, const char* name, const char* help,
                     const char* examples, std::function<absl::Status()> run) {
  CLI::App* command = parent.add_subcommand(name, help);
  command->footer(examples);
  command->callback([run = std::move(run), &context, command] {
    // Comes after the callbacks of commands below it, which mean more.
    if (command->get_subcommands().empty()) context.action = run;
  });
  return *command;
}

int RunCommandLine(const std::vector<std::string>& arguments, Terminal& terminal, Cancellation& cancellation,
                   CallsFactory make_calls) {
  CommandContext context{terminal, cancellation, std::move(make_calls), nullptr};
  CLI::App app(kDescription, "kvblend");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  AddGenerateCommand(app, context);
  AddChunksCommand(app, context);
  AddPrecomputeCommand(app, context);
  AddStoreCommand(app, context);
  AddScoreCommand(app, context);
  AddBenchCommand(app, context);
  AddCalibrateCommand(app, context);
  AddCorrectionCommand(app, context);
  AddModelCommand(app, context);
  AddInfoCommand(app, context);
  AddHealthCommand(app, context);
  AddKeyCommand(app, context);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return app.exit(error, terminal.out, terminal.err) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status = context.action();
  // Whatever a call made of it, the reason was Ctrl-C.
  if (!status.ok() && cancellation.requested()) status = absl::CancelledError("interrupted");
  if (!status.ok()) terminal.PrintError(status);
  return ExitCodeOf(status);
}

}  // namespace kvblend::server::cli
