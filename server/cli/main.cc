// The kvblend command.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/out_of_threads.h"
#include "server/cli/app.h"
#include "server/cli/cancellation.h"
#include "server/cli/in_process_calls.h"
#include "server/cli/terminal.h"
#include "server/grpc/grpc_calls.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace {

using kvblend::server::Calls;
using kvblend::server::cli::Cancellation;
using kvblend::server::cli::Connection;
using kvblend::server::cli::ProgressBar;
using kvblend::server::cli::Terminal;

absl::StatusOr<std::shared_ptr<Calls>> MakeCalls(const Connection& connection, Cancellation& cancellation,
                                                 Terminal& terminal) {
  if (connection.engine_options.model_path.empty()) {
    const char* api_key = std::getenv("KVBLEND_API_KEY");
    kvblend::server::GrpcTarget target{.address = connection.server,
                                       .api_key = api_key == nullptr ? "" : api_key,
                                       .tls_ca_path = connection.tls_ca_path,
                                       .tls_certificate_path = connection.tls_client_certificate_path,
                                       .tls_key_path = connection.tls_client_key_path};
    if (connection.unary_timeout_seconds) {
      target.unary_timeout = absl::Seconds(*connection.unary_timeout_seconds);
    }
    return kvblend::server::MakeGrpcCalls(target);
  }
  ProgressBar bar(terminal, "Loading the model (MiB)");
  const auto on_load = [&bar](int64_t done_bytes, int64_t total_bytes) {
    bar.Update(done_bytes >> 20, total_bytes >> 20, "");
  };
  return kvblend::server::cli::MakeInProcessCalls(connection.engine_options, cancellation, on_load);
}

}  // namespace

int main(int argc, char** argv) {
  kvblend::SayWhenOutOfThreads("kvblend");
  // Standard output is for answers.
  spdlog::set_default_logger(spdlog::stderr_color_mt("kvblend"));
  spdlog::set_level(spdlog::level::warn);
  Terminal terminal = Terminal::Standard();
  Cancellation cancellation;
  const kvblend::server::cli::CancelOnSignal cancel_on_signal(cancellation);
  return kvblend::server::cli::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc),
                                              KVBLEND_VERSION, terminal, cancellation, MakeCalls);
}
