// kvblend-server: loads a model and serves it over gRPC, with metrics and health over HTTP.
#include <iostream>
#include <string>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/out_of_threads.h"
#include "engine/api/engine.h"
#include "server/config/server_config.h"
#include "server/main/load_log.h"
#include "server/main/log_format.h"
#include "server/main/run_server.h"
#include "server/main/stop_signals.h"
#include "server/main/write_signals.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  kvblend::SayWhenOutOfThreads("kvblend-server");
  kvblend::server::IgnoreWriteSignals();
  kvblend::server::StopSignals stop_signals;
  const kvblend::server::ParsedConfig parsed = kvblend::server::ParseConfig(argc, argv, KVBLEND_VERSION);
  std::cout << parsed.output;
  if (!parsed.config && parsed.json_log) {
    kvblend::server::SetUpLog("error", /*json=*/true);
    absl::string_view message = absl::StripSuffix(parsed.error_output, "\n");
    absl::ConsumePrefix(&message, "kvblend-server: ");
    spdlog::error("{}", std::string(message));
  } else {
    std::cerr << parsed.error_output;
  }
  if (!parsed.config) return parsed.exit_code;
  kvblend::server::SetUpLog(parsed.config->log_level, parsed.config->log_format == "json");
  const auto create_engine = [&stop_signals](const kvblend::EngineOptions& options) {
    stop_signals.EndAtOnce(true);
    kvblend::server::LoadLog log(options.model_path, absl::Now,
                                 [](const std::string& line) { spdlog::info("{}", line); });
    auto engine =
        kvblend::Engine::Create(options, [&log](int64_t done, int64_t total) { log.Update(done, total); });
    stop_signals.EndAtOnce(false);
    return engine;
  };
  return kvblend::server::RunServer(*parsed.config, create_engine, stop_signals.arrived());
}
