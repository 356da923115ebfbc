#include "server/config/server_config.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/config/engine_flags.h"
#include "server/config/help_format.h"
#include "server/config/settings_file.h"
#include "server/config/value_checks.h"

namespace kvblend::server {
namespace {

constexpr char kDescription[] =
    "Serves a language model over gRPC and OpenAI's HTTP API to retrieval-augmented applications, reusing the KV of document chunks "
    "at any position.";

constexpr char kFooter[] = R"(
Sizes take units: 65536, 500MB (500 * 10^6 bytes), 4GiB (4 * 2^30 bytes). Every option can also be given as an environment variable
(--chunk-store-bytes as KVBLEND_CHUNK_STORE_BYTES) or in the file of --config, one "name=value" per line. Flags win over
the file, the file over the environment.

Signals: SIGTERM, SIGINT and SIGHUP stop accepting requests, finish the accepted ones, exit 0; a second one exits at once.
Exit codes: 0 stopped as asked, 1 could not start, 2 bad settings, 128 + n ended at once by signal n.

Examples:
  kvblend-server --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  kvblend-server --model model.gguf --api-keys keys.jsonl --grpc-address 0.0.0.0:50051 --api-address 0.0.0.0:8000 --chunk-store-bytes 64GiB
  kvblend-server --config /etc/kvblend/server.conf
  curl -s http://127.0.0.1:8090/readyz)";

constexpr char kConfigVariable[] = "KVBLEND_CONFIG";

// "chunk-store-bytes" -> "KVBLEND_CHUNK_STORE_BYTES"
std::string EnvironmentName(const std::string& option) {
  std::string name = "KVBLEND_";
  for (char c : option)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

template <typename T>
CLI::Option* Add(CLI::App& app, const char* group, const std::string& name, T& value,
                 const std::string& help) {
  return app.add_option("--" + name, value, help)->capture_default_str()->group(group);
}

CLI::Option* AddFile(CLI::App& app, const char* group, const std::string& name, std::string& path,
                     const std::string& help) {
  return Add(app, group, name, path, help)->check(AFile("--" + name))->type_name("FILE");
}

void SetRatio(const std::string& text, RatioOptions& ratio) {
  ratio.mode = text == "auto" ? RatioMode::kAuto : RatioMode::kFixed;
  if (text != "auto" && !absl::SimpleAtod(text, &ratio.ratio)) {
    throw CLI::ValidationError("ratio is '" + text + "'; allowed: 0 to 1, or auto");
  }
}

// Defaults of requests. Requests of the command line have flags of their own.
void AddRequestDefaults(CLI::App& app, RatioOptions& ratio) {
  constexpr char kGroup[] = "Blending";
  app.add_option_function<std::string>(
         "--ratio", [&ratio](const std::string& text) { SetRatio(text, ratio); },
         "For requests that do not say it: share of the reused tokens to recompute, 0 to 1; auto: as many as can be recomputed "
         "while stored KV is still being read")
      ->default_str(absl::StrCat(ratio.ratio))
      ->type_name("R")
      ->group(kGroup);
  Add(app, kGroup, "ratio-min", ratio.min, "With auto: recompute at least this share")
      ->check(AnyOf<double>("--ratio-min", "0 to 1"))
      ->type_name("R");
  Add(app, kGroup, "ratio-max", ratio.max, "With auto: recompute at most this share")
      ->check(AnyOf<double>("--ratio-max", "0 to 1"))
      ->type_name("R");
  Add(app, kGroup, "min-recomputed-tokens", ratio.min_tokens,
      "For requests that give no share: recompute at least so many of the reused tokens")
      ->check(AnyOf<int32_t>("--min-recomputed-tokens", "from 0"));
}

void AddSeconds(CLI::App& app, const char* group, const std::string& name, absl::Duration& value, double min,
                const std::string& help) {
  app.add_option_function<double>(
         "--" + name, [&value](double seconds) { value = absl::Seconds(seconds); }, help)
      ->default_str(absl::StrCat(absl::ToInt64Seconds(value)))
      ->check(Number("--" + name, min, 86400))
      ->type_name("SECONDS")
      ->group(group);
}

void AddApi(CLI::App& app, ApiConfig& api) {
  constexpr char kGroup[] = "HTTP API";
  Add(app, kGroup, "api-address", api.address,
      "Where the HTTP API is, such as /v1/chat/completions: HOST:PORT; port 0: any free one; none: nowhere");
  app.add_option(
         "--api-allowed-hosts", api.allowed_hosts,
         "On loopback without keys and TLS: Host headers to answer besides localhost and IP addresses; *: any")
      ->delimiter(',')
      ->check(AHostName("--api-allowed-hosts"))
      ->type_name("NAME,...")
      ->group(kGroup);
  Add(app, kGroup, "api-model", api.model_id,
      "What its clients call the model; else the name in the model's file")
      ->type_name("NAME");
  Add(app, kGroup, "api-max-connections", api.max_connections,
      "Connections at once; one more takes the place of an idle one, or gets status 503")
      ->check(WholeNumber("--api-max-connections", 1, 1'000'000));
  AsBytes(
      Add(app, kGroup, "api-max-header-bytes", api.max_header_bytes,
          "Most bytes of request line and headers of one request; bodies are bounded by --max-message-bytes"))
      ->check(WholeNumber("--api-max-header-bytes", 1024, 1 << 20));
  AsBytes(Add(app, kGroup, "api-max-unsent-bytes", api.max_unsent_bytes,
              "Most bytes of one stream that may wait for its reader; with more, the request is cancelled"))
      ->check(WholeNumber("--api-max-unsent-bytes", 1024, int64_t{1} << 40));
  AddSeconds(app, kGroup, "api-request-timeout", api.request_timeout, 0.1,
             "Longest time for a request to arrive, from its first byte to its last");
  AddSeconds(app, kGroup, "api-idle-timeout", api.idle_timeout, 0.1,
             "Time that a connection may stay open between requests");
  AddSeconds(app, kGroup, "api-write-timeout", api.write_timeout, 0.1,
             "Longest time until the client takes a piece of an answer; then the request is cancelled");
}

void AddGrpc(CLI::App& app, GrpcConnectionLimits& grpc) {
  constexpr char kGroup[] = "gRPC";
  Add(app, kGroup, "max-concurrent-streams", grpc.max_concurrent_streams,
      "Calls at once on one connection; more wait at the client")
      ->check(WholeNumber("--max-concurrent-streams", 1, 1'000'000));
  Add(app, kGroup, "grpc-max-connections", grpc.max_connections, "Connections at once; one more is closed")
      ->check(WholeNumber("--grpc-max-connections", 1, 1'000'000));
  AsBytes(Add(app, kGroup, "grpc-max-header-bytes", grpc.max_header_bytes,
              "Most bytes of metadata of one call; messages are bounded by --max-message-bytes"))
      ->check(WholeNumber("--grpc-max-header-bytes", 1024, 1 << 20));
  AddSeconds(app, kGroup, "grpc-handshake-timeout", grpc.handshake_timeout, 0.1,
             "Longest time until a new connection speaks HTTP/2, TLS included");
  AddSeconds(app, kGroup, "grpc-idle-timeout", grpc.idle_timeout, 0.1,
             "Time that a connection may stay open without a call");
  AsBytes(
      Add(app, kGroup, "grpc-max-unsent-bytes", grpc.max_unsent_bytes,
          "Most bytes of all answers that may wait for their readers; with more, the call that has the most is ended. One stream may have half"))
      ->check(WholeNumber("--grpc-max-unsent-bytes", 1024, int64_t{1} << 40));
  AddSeconds(
      app, kGroup, "grpc-write-timeout", grpc.write_timeout, 0.1,
      "Longest time until the client takes an answer, or a message of a stream; then the call is ended");
}

void AddTraces(CLI::App& app, TraceConfig& trace) {
  constexpr char kGroup[] = "Timelines of requests";
  CLI::Option* folder =
      Add(app, kGroup, "trace-dir", trace.folder,
          "Folder for timelines of Generate and Score, which ui.perfetto.dev opens; else none are kept")
          ->type_name("DIR");
  const auto add = [&](const std::string& name, auto& value, const std::string& help) {
    return Add(app, kGroup, name, value, help)->needs(folder);
  };
  add("trace-sample", trace.sample,
      "Share of the traces to keep, besides those that callers ask to keep (traceparent)")
      ->check(Number("--trace-sample", 0, 1))
      ->type_name("RATIO");
  add("trace-max-files", trace.max_files, "Most files in --trace-dir; the oldest are removed first")
      ->check(WholeNumber("--trace-max-files", 1, 1'000'000));
  AsBytes(add("trace-max-bytes", trace.max_bytes, "Most bytes of all these files together"))
      ->check(WholeNumber("--trace-max-bytes", 1024, int64_t{1} << 40));
}

void AddServing(CLI::App& app, ServerConfig& config) {
  constexpr char kGroup[] = "Serving";
  AsBytes(
      Add(app, kGroup, "max-message-bytes", config.max_message_bytes, "Most bytes of one request message"))
      ->check(WholeNumber("--max-message-bytes", 1024, std::numeric_limits<int32_t>::max()));
  Add(app, kGroup, "grpc-address", config.grpc_address,
      "Where gRPC listens: HOST:PORT, [IPV6]:PORT or unix:PATH; port 0: any free one");
  Add(app, kGroup, "http-address", config.http_address,
      "Where /metrics, /healthz and /readyz are: HOST:PORT; port 0: any free one");
  CLI::Option* certificate = AddFile(
      app, kGroup, "tls-certificate", config.tls_certificate_path,
      "PEM certificate chain; with --tls-key: gRPC and the HTTP API over TLS; read again when it changes");
  CLI::Option* key =
      AddFile(app, kGroup, "tls-key", config.tls_key_path, "PEM private key of the certificate");
  AddFile(app, kGroup, "tls-client-ca", config.tls_client_ca_path,
          "PEM certificates; clients must show one that is signed by one of them")
      ->needs(certificate);
  certificate->needs(key);
  key->needs(certificate);
  AddFile(
      app, kGroup, "api-keys", config.api_keys_path,
      "Keys that calls need, over gRPC and HTTP, as kvblend key new makes them; read again when it changes");
  app.add_option(
         "--trusted-proxies", config.trusted_proxies,
         "Proxies in front, whose X-Forwarded-For tells whom a call comes from, for fairness and the log")
      ->delimiter(',')
      ->type_name("CIDR,...")
      ->group(kGroup);
  app.add_flag("--allow-unauthenticated", config.allow_unauthenticated,
               "Without --api-keys: serve calls on other addresses than loopback, to whoever reaches them")
      ->check(ASwitch("--allow-unauthenticated"))
      ->group(kGroup);
  AddSeconds(app, kGroup, "drain-timeout", config.drain_timeout, 0.0,
             "Seconds that accepted requests get to finish at shutdown");
  Add(app, kGroup, "port-file", config.port_file,
      "File to write \"grpc=PORT\", \"http=PORT\" and \"api=PORT\" to, one per line, once listening")
      ->type_name("FILE");
  Add(app, kGroup, "log-level", config.log_level, "Least important messages to log, to stderr")
      ->check(OneOf("--log-level", {"trace", "debug", "info", "warn", "error"}));
  Add(app, kGroup, "log-format", config.log_format, "Lines of text, or of JSON with a field for everything")
      ->check(OneOf("--log-format", {"text", "json"}));
}

// `config` must outlive the app.
void AddFlags(CLI::App& app, ServerConfig& config) {
  const std::vector<CLI::Option*> about_the_process = app.get_options();  // --help, --version and --config
  app.add_option(
         "--model", config.engine.model_path,
         "Model to serve: a GGUF file, the first of its parts, or a folder with config.json and safetensors")
      ->required()
      ->type_name("FILE")
      ->group("Model and computation");
  AddEngineFlags(app, config.engine);
  AddRequestDefaults(app, config.engine.ratio);
  AddServing(app, config);
  AddGrpc(app, config.grpc);
  AddApi(app, config.api);
  AddTraces(app, config.trace);
  for (CLI::Option* option : app.get_options()) {
    if (std::count(about_the_process.begin(), about_the_process.end(), option) > 0) continue;
    option->envname(EnvironmentName(option->get_lnames().front()));
  }
}

// Refuses variables of an option's second name, such as --no-self-check, which CLI11 would overlook.
absl::Status CheckVariables(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    for (size_t i = 1; i < names.size(); ++i) {
      const std::string variable = EnvironmentName(names[i]);
      const char* const value = std::getenv(variable.c_str());
      if (value == nullptr || *value == '\0') continue;
      return absl::InvalidArgumentError(absl::StrCat(
          variable, " is '", value, "'; allowed: ", EnvironmentName(names.front()), "=false in its place"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckListening(const ServerConfig& config) {
  if (!config.api_keys_path.empty() || config.allow_unauthenticated) return absl::OkStatus();
  const std::pair<const char*, const std::string&> addresses[] = {{"--grpc-address", config.grpc_address},
                                                                  {"--api-address", config.api.address}};
  for (const auto& [flag, address] : addresses) {
    if (IsLoopback(address)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", address,
                     " without keys; allowed: a loopback address, --api-keys, or "
                     "--allow-unauthenticated where only those who may can reach it"));
  }
  return absl::OkStatus();
}

// What is wrong with the command line. Words that belong to no flag explain the rest, such as that --model is
// missing.
std::string WhatIsWrong(const CLI::App& app, const CLI::Error& error) {
  const std::vector<std::string> stray = app.remaining();
  if (stray.empty()) return error.what();
  const bool is_flag = absl::StartsWith(stray.front(), "-");
  std::string word = stray.front();
  // A URL out of its place may have a password.
  if (const size_t at = word.rfind('@'); at != std::string::npos) word.replace(0, at, "...");
  return absl::StrCat("'", word, "' ",
                      is_flag
                          ? "is no setting"
                          : "belongs to no setting; allowed: settings as --NAME VALUE, such as --model FILE");
}

// What is known of it where settings are wrong: variables count for what has not been read by then.
bool WantsJson(const CLI::App& app) {
  const CLI::Option& format = *app.get_option("--log-format");
  if (format.count() > 0) return format.results().back() == "json";
  const char* const variable = std::getenv("KVBLEND_LOG_FORMAT");
  return variable != nullptr && std::string_view(variable) == "json";
}

// CLI11's messages may span lines; callers show one.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

bool IsLoopback(const std::string& address) {
  for (const char* host : {"localhost:", "[::1]:", "unix:"}) {
    if (absl::StartsWith(address, host)) return true;
  }
  // Parsed, since a host's name may begin with "127." too.
  in_addr parsed;
  const std::string host = address.substr(0, address.rfind(':'));
  if (absl::StartsWith(host, "127.") && inet_pton(AF_INET, host.c_str(), &parsed) == 1) return true;
  return address == "none";
}

ParsedConfig ParseConfig(int argc, const char* const* argv, const std::string& version) {
  ParsedConfig parsed;
  try {
    ServerConfig config;
    PipedSettings piped;
    CLI::App app(kDescription, "kvblend-server");
    app.footer(kFooter);
    app.formatter(std::make_shared<HelpFormat>());
    app.set_version_flag("--version", "kvblend-server " + version);
    // CLI11 looks for the file before it reads the environment.
    const char* const config_path = std::getenv(kConfigVariable);
    const bool has_config = config_path != nullptr && *config_path != '\0';
    app.set_config("--config", has_config ? config_path : "",
                   "File with settings, one NAME=VALUE in each line",
                   /*config_required=*/has_config)
        ->envname(kConfigVariable)
        ->transform([&piped](std::string path) {
          piped.Replace(path);
          return path;
        });
    app.config_formatter(std::make_shared<SettingsFile>(app, piped));
    AddFlags(app, config);
    try {
      app.parse(argc, argv);
      absl::Status checked = FinishEngineOptions(config.engine);
      checked.Update(CheckVariables(app));
      checked.Update(CheckListening(config));
      if (!checked.ok()) {
        throw CLI::ValidationError(std::string(checked.message()));
      }
      parsed.config = std::move(config);
    } catch (const CLI::CallForHelp&) {
      parsed.output = app.help();
    } catch (const CLI::CallForVersion& call) {
      parsed.output = std::string(call.what()) + "\n";
    } catch (const CLI::Error& error) {
      parsed.exit_code = 2;
      parsed.json_log = WantsJson(app);
      parsed.error_output =
          "kvblend-server: " + OneLine(WhatIsWrong(app, error)) + "; see kvblend-server --help\n";
    }
  } catch (const std::exception& error) {
    parsed.exit_code = 2;
    parsed.error_output = "kvblend-server: " + OneLine(error.what()) + "\n";
  }
  return parsed;
}

}  // namespace kvblend::server
