// kvblend-server's settings, from flags, environment and a file; docs/operator-guide.md and --help have them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "server/grpc/connection_limits.h"

namespace kvblend::server {

/// The settings of the HTTP API; what each does is documented in server/http/http_server.h.
struct ApiConfig {
  std::string address = "127.0.0.1:8000";  // HOST:PORT, [IPV6]:PORT or "none"
  std::vector<std::string> allowed_hosts;  // names, without a port, or "*"
  std::string model_id;                    // what clients call the model; empty: the name that its file gives
  int32_t max_connections = 1024;
  int64_t max_header_bytes = 16 << 10;
  int64_t max_unsent_bytes = int64_t{16} << 20;
  absl::Duration request_timeout = absl::Seconds(30);
  absl::Duration idle_timeout = absl::Seconds(75);
  absl::Duration write_timeout = absl::Seconds(30);
};

/// Of requests' timelines; what each does is documented in server/trace/tracer.h.
struct TraceConfig {
  std::string folder;  // empty: none are kept
  double sample = 0.01;
  int64_t max_files = 1000;
  int64_t max_bytes = int64_t{256} << 20;
};

struct ServerConfig {
  EngineOptions engine;
  std::string grpc_address = "127.0.0.1:50051";  // HOST:PORT, [IPV6]:PORT or unix:PATH
  GrpcConnectionLimits grpc;
  std::string http_address = "127.0.0.1:8090";  // HOST:PORT or [IPV6]:PORT
  ApiConfig api;
  std::string api_keys_path;                 // empty: whoever reaches the server may make all calls
  std::vector<std::string> trusted_proxies;  // addresses and networks
  bool allow_unauthenticated = false;  // without keys: listen for calls on other addresses than loopback
  int64_t max_message_bytes = int64_t{16} << 20;  // of one request
  std::string tls_certificate_path;               // both or neither
  std::string tls_key_path;
  std::string tls_client_ca_path;
  absl::Duration drain_timeout = absl::Seconds(30);
  std::string port_file;  // written once listening; empty: none
  std::string log_level = "info";
  std::string log_format = "text";  // or "json"
  TraceConfig trace;
};

/// Whether the address can be reached only from this machine, or not at all ("none").
bool IsLoopback(const std::string& address);

/// What reading the settings came to: a configuration, or the end of the process.
struct ParsedConfig {
  std::optional<ServerConfig> config;
  int exit_code = 0;         // without a configuration: 0 after --help or --version, 2 for bad settings
  std::string output;        // for stdout: the help or version text
  std::string error_output;  // for stderr: one line that says what is wrong
  bool json_log = false;     // without a configuration: that line is wanted as the log would have it
};

/// Flags come first, then the file that --config names, then KVBLEND_* variables.
ParsedConfig ParseConfig(int argc, const char* const* argv, const std::string& version);

}  // namespace kvblend::server
