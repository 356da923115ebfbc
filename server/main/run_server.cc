#include "server/main/run_server.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/access/keyed_access.h"
#include "server/api/routes.h"
#include "server/calls/engine_calls.h"
#include "server/calls/engine_slot.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/http/operator_pages.h"
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

// What the writers of running streams get, after the engine is done, to send what is queued.
constexpr absl::Duration kFlushTime = absl::Seconds(5);

int FailToStart(const absl::Status& status) {
  std::cerr << "kvblend-server: " << status.message() << "\n";
  return kStartFailed;
}

// An address as it was given, with the port where that does not say it: that of port 0.
std::string Place(const std::string& address, int port) {
  return absl::EndsWith(address, ":0") ? absl::StrCat(address, " (port ", port, ")") : address;
}

// Under a temporary name first, so that whoever waits for the file never reads a half of it.
absl::Status WritePortFile(const std::string& path, int grpc_port, int http_port,
                           const HttpServer* api_server) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  errno = 0;
  std::ofstream file(temporary);
  file << "grpc=" << grpc_port << "\nhttp=" << http_port << "\n";
  if (api_server != nullptr) file << "api=" << api_server->port() << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("can't write --port-file ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartOperatorPages(const HostPort& address, Metrics* metrics,
                                                               const EngineSlot* engine_slot) {
  OperatorCallbacks callbacks;
  callbacks.metrics = [metrics] { return metrics->Expose(); };
  callbacks.vllm_metrics = [metrics] { return metrics->ExposeUnderVllmNames(); };
  callbacks.not_ready_reason = [engine_slot] { return engine_slot->NotServingReason(); };
  HttpServerOptions options;
  options.address = address;
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
                                                     const ApiContext& context) {
  HttpServerOptions options;
  options.address = address;
  options.tls = TlsOf(config);
  // Whoever else is reached has been let in on purpose, and with TLS a page of another name gets no connection.
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
  return HttpServer::Start(options, ApiRoutes(context), ApiErrorPage);
}

}  // namespace

int RunServer(const ServerConfig& config, const EngineFactory& create_engine,
              const absl::Notification& stop) {
  const auto http_address = ParseHostPort("--http-address", config.http_address);
  if (!http_address.ok()) {
    FailToStart(http_address.status());
    return kBadSettings;
  }
  const bool with_api = config.api.address != kNowhere;
  const auto api_address =
      with_api ? ParseHostPort("--api-address", config.api.address) : absl::StatusOr<HostPort>(HostPort());
  if (!api_address.ok()) {
    FailToStart(api_address.status());
    return kBadSettings;
  }

  // Destroyed in reverse order: listeners, then the engine, then what both report to.
  Metrics metrics;
  std::unique_ptr<Tracer> tracer;
  EngineSlot engine_slot;
  std::unique_ptr<Engine> engine;

  if (!config.trace.folder.empty()) {
    auto opened =
        Tracer::Open({.folder = config.trace.folder,
                      .sample = config.trace.sample,
                      .limits = {.max_files = config.trace.max_files, .max_bytes = config.trace.max_bytes}});
    if (!opened.ok()) {
      FailToStart(opened.status());
      return kBadSettings;
    }
    tracer = *std::move(opened);
  }
  EngineCalls calls(&engine_slot, {.engine_options = config.engine,
                                   .max_message_bytes = config.max_message_bytes,
                                   .started = absl::Now()});
  std::unique_ptr<KeyedAccess> access;
  if (!config.api_keys_path.empty()) {
    auto opened = KeyedAccess::Open(
        config.api_keys_path, &calls,
        [&](const std::map<std::string, int64_t>& bytes) { engine_slot.LimitNamespaces(bytes); });
    if (!opened.ok()) {
      FailToStart(opened.status());
      return kBadSettings;
    }
    access = *std::move(opened);
    metrics.SetTenants([raw = access.get()] { return CountsOf(raw->Use()); });
  }
  ServiceContext context;
  context.tracer = tracer.get();
  context.calls = &calls;
  context.access = access.get();
  context.metrics = &metrics;
  GrpcServerOptions grpc_options;
  grpc_options.address = config.grpc_address;
  grpc_options.max_message_bytes = config.max_message_bytes;
  grpc_options.limits = config.grpc;
  grpc_options.tls = TlsOf(config);
  auto grpc_server = GrpcServer::Start(grpc_options, context);
  if (!grpc_server.ok()) return FailToStart(grpc_server.status());

  auto http_server = StartOperatorPages(*http_address, &metrics, &engine_slot);
  if (!http_server.ok()) return FailToStart(http_server.status());

  std::unique_ptr<HttpServer> api_server;
  if (with_api) {
    auto started = StartApi(*api_address, config,
                            {.calls = &calls,
                             .access = access.get(),
                             .metrics = &metrics,
                             .tracer = tracer.get(),
                             .model_id = config.api.model_id});
    if (!started.ok()) return FailToStart(started.status());
    api_server = *std::move(started);
  }

  spdlog::info("listening: gRPC on {}, operators' HTTP on {}, the HTTP API {}",
               Place(config.grpc_address, (*grpc_server)->port()),
               Place(config.http_address, (*http_server)->port()),
               api_server == nullptr ? "nowhere" : "on " + Place(config.api.address, api_server->port()));
  if (!config.port_file.empty()) {
    const absl::Status written =
        WritePortFile(config.port_file, (*grpc_server)->port(), (*http_server)->port(), api_server.get());
    if (!written.ok()) return FailToStart(written);
  }

  spdlog::info("loading {}", config.engine.model_path);
  const absl::Time load_start = absl::Now();
  auto loaded = create_engine(config.engine);
  if (!loaded.ok()) return FailToStart(loaded.status());
  engine = *std::move(loaded);
  const EngineInfo& info = engine->info();
  spdlog::info("device {}: {}", info.device, info.device_reason);
  metrics.SetEngine(info, [raw = engine.get()] { return raw->Stats(); });

  if (!stop.HasBeenNotified()) {
    engine_slot.Serve(engine.get());
    metrics.SetReady(true);
    (*grpc_server)->SetServing(true);
    spdlog::info(
        "serving {} ({}, {} layers, context {} tokens, KV {}, chunks {} with {} bytes per token) on {}, "
        "chat format {}, loaded in {:.2f} s",
        info.model_name, info.model_architecture, info.num_layers, info.max_context_tokens, info.kv_dtype,
        info.chunk_format, info.chunk_bytes_per_token, info.backend, info.chat_format,
        absl::ToDoubleSeconds(absl::Now() - load_start));
    if (!info.told_date.empty()) {
      spdlog::info(
          "prompts tell the day, {}: chunks stored on another are computed anew, unless --chat-date is the same",
          info.told_date);
    }
    stop.WaitForNotification();
  }

  spdlog::info("stopping: finishing accepted requests, for at most {} s",
               absl::ToDoubleSeconds(config.drain_timeout));
  engine_slot.Drain();
  metrics.SetReady(false);
  (*grpc_server)->SetServing(false);
  if (api_server != nullptr) api_server->Drain();
  const absl::Status drained = engine->Drain(absl::Now() + config.drain_timeout);
  if (!drained.ok()) spdlog::warn("not everything could be finished: {}", std::string(drained.message()));
  const absl::Time flush_end = absl::Now() + kFlushTime;
  (*grpc_server)->Shutdown(flush_end);
  if (api_server != nullptr) api_server->Shutdown(flush_end);
  metrics.ResetEngine();
  http_server->reset();
  spdlog::info("stopped");
  return kStopped;
}

}  // namespace kvblend::server
