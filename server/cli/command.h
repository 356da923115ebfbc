// What every command is given, and how it is added to the command line.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/cli/cancellation.h"
#include "server/cli/client.h"
#include "server/cli/terminal.h"

namespace CLI {
class App;
}

namespace kvblend::server::cli {

/// Which engine to talk to: the one that is made from `engine_options` when a model is named, else the
/// server.
struct Connection {
  std::string server = "127.0.0.1:50051";
  std::string tls_ca_path;  // empty: no TLS
  std::string tls_client_certificate_path, tls_client_key_path;
  std::optional<double> unary_timeout_seconds;  // of a call that is no stream; none: GrpcTarget's
  EngineOptions engine_options;                 // model_path empty: use the server
};

using CallsFactory = std::function<absl::StatusOr<std::shared_ptr<Calls>>(
    const Connection& connection, Cancellation& cancellation, Terminal& terminal)>;

/// Outlives the parsed command line.
struct CommandContext {
  Terminal& terminal;
  Cancellation& cancellation;
  CallsFactory make_calls;
  /// Set by the command that was chosen; run once parsing has succeeded. Errors become exit codes.
  std::function<absl::Status()> action;

  absl::StatusOr<Client> Connect(const Connection& connection);
};

/// A command of `parent`, which runs once it was parsed.
CLI::App& AddCommand(CLI::App& parent, CommandContext& context, const char* name, const char* help,
                     const char* examples, std::function<absl::Status()> run);

/// The same for a command with flags; they live as long as it.
template <typename Flags>
struct Command {
  CLI::App& app;
  Flags& flags;
};
template <typename Flags>
Command<Flags> AddCommand(CLI::App& parent, CommandContext& context, const char* name, const char* help,
                          const char* examples, absl::Status (*run)(const Flags&, CommandContext&)) {
  const auto flags = std::make_shared<Flags>();
  return {AddCommand(parent, context, name, help, examples,
                     [flags, run, &context] { return run(*flags, context); }),
          *flags};
}

void AddGenerateCommand(CLI::App& root, CommandContext& context);
void AddChunksCommand(CLI::App& root, CommandContext& context);
void AddPrecomputeCommand(CLI::App& root, CommandContext& context);
void AddStoreCommand(CLI::App& root, CommandContext& context);
void AddScoreCommand(CLI::App& root, CommandContext& context);
void AddBenchCommand(CLI::App& root, CommandContext& context);
void AddCalibrateCommand(CLI::App& root, CommandContext& context);
void AddCorrectionCommand(CLI::App& root, CommandContext& context);
void AddModelCommand(CLI::App& root, CommandContext& context);
void AddInfoCommand(CLI::App& root, CommandContext& context);
void AddHealthCommand(CLI::App& root, CommandContext& context);
void AddKeyCommand(CLI::App& root, CommandContext& context);

}  // namespace kvblend::server::cli
