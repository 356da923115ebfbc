#include "server/cli/app.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/cli/exit_code.h"
#include "server/config/help_format.h"

namespace kvblend::server::cli {
namespace {

constexpr char kDescription[] =
    "kvblend: serves prompts that are made of retrieved chunks, reusing the KV of every chunk";

constexpr char kFooter[] =
    R"(Exit codes: 0 done, 1 error, 2 wrong usage or a refused value, 3 no such file or chunk,
4 server unreachable, overloaded or too slow (try again), 5 done, but some of the input or of what is stored
is damaged, or answers differ that should not (bench serve --check-answers), 130 interrupted.
Environment: KVBLEND_SERVER is the default of --server; KVBLEND_API_KEY is the key for a server that wants one; NO_COLOR switches colours off.

Examples:
  kvblend generate --chunk-file report.txt --question "What were the findings?"
  kvblend chunks put docs/*.txt
  kvblend precompute docs/ --output chunks.jsonl
  kvblend bench --model model.gguf --data tests/fixtures/musique_sample.json
  kvblend COMMAND --help
)";

/// Refuses a word in the place of a command that is none: CLI11 would only say that one is required.
void CheckCommands(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* parent = &app;
  for (const std::string& word : arguments) {
    std::vector<std::string> names;
    for (const CLI::App* command : parent->get_subcommands({})) {
      if (!command->get_name().empty()) names.push_back(command->get_name());
    }
    if (names.empty() || absl::StartsWith(word, "-")) return;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      throw CLI::ValidationError(
          absl::StrCat("'", word, "' is no command; allowed: ", absl::StrJoin(names, ", ")));
    }
    parent = parent->get_subcommand(word);
  }
}

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
    // Called after the callbacks of subcommands, whose actions must stay.
    if (command->get_subcommands().empty()) context.action = run;
  });
  return *command;
}

namespace {

int Run(const std::vector<std::string>& arguments, const std::string& version, Terminal& terminal,
        Cancellation& cancellation, CallsFactory make_calls) {
  CommandContext context{terminal, cancellation, std::move(make_calls), nullptr};
  CLI::App app(kDescription, "kvblend");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", "kvblend " + version);
  app.formatter(std::make_shared<HelpFormat>());
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
    CheckCommands(app, arguments);
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> stray = app.remaining(/*recurse=*/true);
    if (error.get_exit_code() != 0 && !stray.empty()) {
      terminal.err << "'" << stray.front() << "' belongs to no flag of this command; see --help\n";
      return kExitUsage;
    }
    return app.exit(error, terminal.out, terminal.err) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status = context.action();
  // Whatever error a call made of it, the reason was Ctrl-C.
  if (!status.ok() && cancellation.requested()) status = absl::CancelledError("interrupted");
  if (!status.ok()) terminal.PrintError(status);
  return ExitCodeOf(status);
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, const std::string& version, Terminal& terminal,
                   Cancellation& cancellation, CallsFactory make_calls) {
  const int exit_code = Run(arguments, version, terminal, cancellation, std::move(make_calls));
  // Commands do not check their output, but exit code 0 must mean that it was written.
  if (terminal.out.flush() || exit_code != kExitOk) return exit_code;
  terminal.PrintError(absl::InternalError("standard output did not take all that was printed"));
  return kExitError;
}

}  // namespace kvblend::server::cli
