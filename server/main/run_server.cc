#include "server/main/run_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "server/access/keyed_access.h"
#include "server/api/routes.h"
#include "server/calls/call_log.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/files/open_file.h"
#include "server/files/open_files.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/http/operator_pages.h"
#include "server/main/end_of_process.h"
#include "server/metrics/metrics.h"
#include "server/tls/server_tls.h"
#include "server/trace/tracer.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr int kStopped = 0;
constexpr int kStartFailed = 1;
constexpr int kBadSettings = 2;

constexpr char kNowhere[] = "none";  // as an address

// The time that running streams have, after the engine is done, to send what is queued.
constexpr absl::Duration kFlushTime = absl::Seconds(5);
// The time that cancelled calls have to end. Supervisors are told to give ten seconds for both.
constexpr absl::Duration kEndTime = absl::Seconds(4);

// Some settings can only be judged once the model, the processor or a certificate is known.
int FailToStart(const absl::Status& status) {
  if (spdlog::get(kStructuredLog) != nullptr) {
    spdlog::error("{}", std::string(status.message()));
  } else {
    std::cerr << "kvblend-server: " << status.message() << "\n";
  }
  return absl::IsInvalidArgument(status) ? kBadSettings : kStartFailed;
}

// An address as it was given; behind port 0 the port that the system chose.
std::string Place(const std::string& address, int port) {
  return absl::EndsWith(address, ":0") ? absl::StrCat(address, " (port ", port, ")") : address;
}

// Written under a temporary name first, so that whoever waits for the file never reads a half of it.
absl::Status WritePortFile(const std::string& path, int grpc_port, int http_port,
                           const HttpServer* api_server) {
  KVBLEND_RETURN_IF_ERROR(CheckReplaceable("--port-file", path));
  const std::string temporary = absl::StrCat(path, ".", getpid());
  errno = 0;
  std::ofstream file(temporary);
  if (grpc_port > 0) file << "grpc=" << grpc_port << "\n";  // a Unix socket has none
  file << "http=" << http_port << "\n";
  if (api_server != nullptr) file << "api=" << api_server->port() << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("can't write --port-file ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartOperatorPages(const HostPort& address,
                                                               const std::string& served_name,
                                                               Metrics* metrics,
                                                               const EngineSlot* engine_slot) {
  OperatorCallbacks callbacks;
  callbacks.metrics = [metrics] { return metrics->Expose(); };
  callbacks.vllm_metrics = [metrics, served_name] { return metrics->ExposeUnderVllmNames(served_name); };
  callbacks.not_ready_reason = [engine_slot] { return engine_slot->NotServingReason(); };
  HttpServerOptions options;
  options.address = address;
  options.leaves_spare_files = false;  // they are what some are left for
  return HttpServer::Start(options, OperatorPages(std::move(callbacks)), PlainErrorPage);
}

std::map<std::string, TenantCounts> CountsOf(const std::map<std::string, TenantUse>& tenants) {
  std::map<std::string, TenantCounts> counts;
  for (const auto& [name, use] : tenants) {
    counts[name] = {.requests = use.requests,
                    .computed_tokens = use.computed_tokens,
                    .refused = {{"requests_per_minute", use.refused_for_requests},
                                {"computed_tokens_per_minute", use.refused_for_computed_tokens},
                                {"concurrent_requests", use.refused_for_concurrent}}};
  }
  return counts;
}

TlsFiles TlsOf(const ServerConfig& config) {
  return {.certificate_path = config.tls_certificate_path,
          .key_path = config.tls_key_path,
          .client_ca_path = config.tls_client_ca_path};
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartApi(const HostPort& address, const ServerConfig& config,
                                                     const TrustedProxies& trusted_proxies,
                                                     const ApiContext& context) {
  HttpServerOptions options;
  options.address = address;
  options.trusted_proxies = trusted_proxies;
  options.tls = TlsOf(config);
  // Others are reachable on purpose, and TLS keeps pages of other names out.
  if (config.api_keys_path.empty() && !options.tls.enabled() && IsLoopback(config.api.address)) {
    options.allowed_hosts = AllowedHosts("--api-allowed-hosts", config.api.allowed_hosts);
  }
  options.max_connections = config.api.max_connections;
  options.max_header_bytes = config.api.max_header_bytes;
  options.max_body_bytes = config.max_message_bytes;
  options.max_pending_body_bytes = std::max(options.max_pending_body_bytes, config.max_message_bytes);
  options.max_unsent_bytes = config.api.max_unsent_bytes;
  options.max_unsent_bytes_of_all = std::max(options.max_unsent_bytes_of_all, config.api.max_unsent_bytes);
  options.request_timeout = config.api.request_timeout;
  options.idle_timeout = config.api.idle_timeout;
  options.write_timeout = config.api.write_timeout;
  options.on_refused = [metrics = context.metrics](int status) { metrics->CountHttpRefusal(status); };
  options.on_evicted = [metrics = context.metrics] { metrics->CountHttpEviction(); };
  options.limit_names = {{408, "--api-request-timeout"},
                         {413, "--max-message-bytes"},
                         {421, "--api-allowed-hosts"},
                         {431, "--api-max-header-bytes"},
                         {503, "--api-max-connections"}};
  return HttpServer::Start(options, ApiRoutes(context), ApiErrorPage);
}

/// Where the HTTP servers listen; nullopt: there is no HTTP API.
struct HttpAddresses {
  HostPort operators;
  std::optional<HostPort> api;
};

absl::StatusOr<HttpAddresses> ParseAddresses(const ServerConfig& config) {
  HttpAddresses addresses;
  KVBLEND_ASSIGN_OR_RETURN(addresses.operators, ParseHostPort("--http-address", config.http_address));
  if (config.api.address == kNowhere) return addresses;
  KVBLEND_ASSIGN_OR_RETURN(addresses.api, ParseHostPort("--api-address", config.api.address));
  return addresses;
}

/// Null where no timelines are kept.
absl::StatusOr<std::unique_ptr<Tracer>> OpenTracer(const TraceConfig& trace) {
  if (trace.folder.empty()) return nullptr;
  return Tracer::Open({.folder = trace.folder,
                       .sample = trace.sample,
                       .limits = {.max_files = trace.max_files, .max_bytes = trace.max_bytes}});
}

/// Null where calls need no keys.
absl::StatusOr<std::unique_ptr<KeyedAccess>> OpenAccess(const std::string& keys_path, Calls* calls,
                                                        EngineSlot* engine_slot, Metrics* metrics) {
  if (keys_path.empty()) return nullptr;
  KVBLEND_ASSIGN_OR_RETURN(
      std::unique_ptr<KeyedAccess> access,
      KeyedAccess::Open(keys_path, calls, [engine_slot](const std::map<std::string, int64_t>& bytes) {
        engine_slot->LimitNamespaces(bytes);
      }));
  metrics->SetTenants([raw = access.get()] { return CountsOf(raw->Use()); });
  return access;
}

/// What listens; destroyed in reverse order.
struct Listeners {
  std::unique_ptr<GrpcServer> grpc;
  std::unique_ptr<HttpServer> operators;
  std::unique_ptr<HttpServer> api;  // null: there is none
};

absl::StatusOr<Listeners> Listen(const ServerConfig& config, const HttpAddresses& addresses,
                                 const ServiceContext& context, const EngineSlot* engine_slot) {
  Listeners listeners;
  GrpcServerOptions grpc_options;
  grpc_options.address = config.grpc_address;
  grpc_options.max_message_bytes = config.max_message_bytes;
  grpc_options.limits = config.grpc;
  grpc_options.tls = TlsOf(config);
  KVBLEND_ASSIGN_OR_RETURN(listeners.grpc, GrpcServer::Start(grpc_options, context));
  KVBLEND_ASSIGN_OR_RETURN(listeners.operators, StartOperatorPages(addresses.operators, config.api.model_id,
                                                                   context.metrics, engine_slot));
  if (addresses.api) {
    KVBLEND_ASSIGN_OR_RETURN(listeners.api, StartApi(*addresses.api, config, context.trusted_proxies,
                                                     {.calls = context.calls,
                                                      .access = context.access,
                                                      .metrics = context.metrics,
                                                      .tracer = context.tracer,
                                                      .model_id = config.api.model_id}));
  }
  spdlog::info(
      "listening: gRPC on {}, operators' HTTP on {}, the HTTP API {}",
      Place(config.grpc_address, listeners.grpc->port()),
      Place(config.http_address, listeners.operators->port()),
      listeners.api == nullptr ? "nowhere" : "on " + Place(config.api.address, listeners.api->port()));
  if (const auto shortage = ShortageOfFiles()) {
    spdlog::warn(
        "{} open files are allowed to this process, and up to {} may be needed, with --api-max-connections {} "
        "and --grpc-max-connections {}: connections are refused before there are so many, unless the hard limit "
        "is raised (ulimit -Hn, LimitNOFILE)",
        shortage->allowed, shortage->wanted, config.api.max_connections, config.grpc.max_connections);
  }
  rlimit address_space = {};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    // Chunks and pages are refused where memory is short; not all of the libraries' code can do that.
    spdlog::warn(
        "the address space of this process is limited to {} bytes (ulimit -v): where that is too little, it ends "
        "without a word; limit the memory of its container or service instead",
        address_space.rlim_cur);
  }
  if (!config.port_file.empty()) {
    KVBLEND_RETURN_IF_ERROR(WritePortFile(config.port_file, listeners.grpc->port(),
                                          listeners.operators->port(), listeners.api.get()));
  }
  return listeners;
}

void LogServing(const EngineInfo& info, absl::Duration load_time) {
  spdlog::info(
      "serving {} ({}, {} layers, context {} tokens, KV {}, chunks {} with {} bytes per token) on {}, "
      "chat format {}, loaded in {:.2f} s",
      info.model_name, info.model_architecture, info.num_layers, info.max_context_tokens, info.kv_dtype,
      info.chunk_format, info.chunk_bytes_per_token, info.backend, info.chat_format,
      absl::ToDoubleSeconds(load_time));
  if (!info.told_date.empty()) {
    spdlog::info(
        "prompts tell the day, {}: chunks stored on another are computed anew, unless --chat-date is the same",
        info.told_date);
  }
}

/// Finishes what was accepted, within the drain timeout, and stops listening.
void DrainAndStop(absl::Duration drain_timeout, Engine& engine, EngineSlot& engine_slot, Metrics& metrics,
                  Listeners& listeners) {
  spdlog::info("stopping: finishing accepted requests, for at most {} s",
               absl::ToDoubleSeconds(drain_timeout));
  engine_slot.Drain();
  metrics.SetReady(false);
  listeners.grpc->SetServing(false);
  if (listeners.api != nullptr) listeners.api->Drain();
  const absl::Status drained = engine.Drain(absl::Now() + drain_timeout);
  if (!drained.ok()) spdlog::warn("not everything could be finished: {}", std::string(drained.message()));
  // gRPC ends calls at that time and then waits for their callbacks, without end where it has no thread for
  // them. All that was to be saved had the drain timeout for it.
  const EndOfProcess end(kFlushTime + kEndTime);
  const absl::Time flush_end = absl::Now() + kFlushTime;
  listeners.grpc->Shutdown(flush_end);
  if (listeners.api != nullptr) listeners.api->Shutdown(flush_end);
  metrics.ResetEngine();
  listeners.operators.reset();
  spdlog::info("stopped");
}

}  // namespace

int RunServer(const ServerConfig& config, const EngineFactory& create_engine,
              const absl::Notification& stop) {
  const auto bad_settings = [](const absl::Status& status) {
    FailToStart(status);
    return kBadSettings;
  };
  const auto addresses = ParseAddresses(config);
  if (!addresses.ok()) return bad_settings(addresses.status());

  // Destroyed in reverse order: listeners, then the engine, then what both report to.
  Metrics metrics;
  const auto tracer = OpenTracer(config.trace);
  if (!tracer.ok()) return bad_settings(tracer.status());
  EngineSlot engine_slot;
  std::unique_ptr<Engine> engine;
  EngineCalls calls(&engine_slot,
                    {.engine_options = config.engine, .max_message_bytes = config.max_message_bytes});
  const auto access = OpenAccess(config.api_keys_path, &calls, &engine_slot, &metrics);
  if (!access.ok()) return bad_settings(access.status());
  auto trusted_proxies = TrustedProxies::Parse("--trusted-proxies", config.trusted_proxies);
  if (!trusted_proxies.ok()) return bad_settings(trusted_proxies.status());
  ServiceContext context;
  context.trusted_proxies = *std::move(trusted_proxies);
  context.tracer = tracer->get();
  context.calls = &calls;
  context.access = access->get();
  context.metrics = &metrics;
  absl::StatusOr<Listeners> listeners = Listen(config, *addresses, context, &engine_slot);
  if (!listeners.ok()) return FailToStart(listeners.status());

  spdlog::info("loading {}", config.engine.model_path);
  const absl::Time load_start = SteadyNow();
  auto loaded = create_engine(config.engine);
  if (!loaded.ok()) return FailToStart(loaded.status());
  engine = *std::move(loaded);
  const EngineInfo& info = engine->info();
  spdlog::info("device {}: {}", info.device, info.device_reason);
  metrics.SetEngine(info, [raw = engine.get()] { return raw->Stats(); });

  if (!stop.HasBeenNotified()) {
    engine_slot.Serve(engine.get());
    metrics.SetReady(true);
    listeners->grpc->SetServing(true);
    LogServing(info, SteadyNow() - load_start);
    stop.WaitForNotification();
  }
  DrainAndStop(config.drain_timeout, *engine, engine_slot, metrics, *listeners);
  return kStopped;
}

}  // namespace kvblend::server
