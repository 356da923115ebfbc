// kvblend health: whether a server accepts requests, for health checks and scripts.
#include <CLI/CLI.hpp>

#include "base/status_macros.h"
#include "server/cli/command.h"
#include "server/cli/flags.h"

namespace kvblend::server::cli {
namespace {

constexpr char kHealthExamples[] = R"(Exit code 0: serving. 4: starting, shutting down, or not to be reached.

Examples:
  kvblend health
  until kvblend health --server 127.0.0.1:50051 2>/dev/null; do sleep 1; done
)";

absl::Status Run(const Connection& connection, CommandContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(Client client, context.Connect(connection));
  KVBLEND_RETURN_IF_ERROR(client.calls().CheckHealth());
  context.terminal.out << "serving" << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddHealthCommand(CLI::App& root, CommandContext& context) {
  const auto [command, connection] = AddCommand<Connection>(
      root, context, "health", "Whether a server accepts requests, asked by grpc.health.v1", kHealthExamples,
      Run);
  AddConnectionFlags(command, InProcess::kServerOnly, connection);
  AddUnaryTimeoutFlag(command, connection);
}

}  // namespace kvblend::server::cli
