#include "server/config/server_config.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "engine/store/redis/transport.h"

namespace kvblend::server {
namespace {

constexpr char kDescription[] =
    "Serves a language model over gRPC to retrieval-augmented applications, reusing the KV of document "
    "chunks "
    "at any position.";

constexpr char kFooter[] = R"(
Sizes take units: 4GiB, 500MB, 65536. Every option can also be given as an environment variable
(--chunk-store-bytes as KVBLEND_CHUNK_STORE_BYTES) or in the file of --config, one "name=value" per line. Flags win over
the file, the file over the environment.

Signals: SIGTERM and SIGINT stop accepting requests, finish the accepted ones, exit 0; a second one exits at once.
Exit codes: 0 stopped as asked, 1 could not start, 2 bad settings, 128 + n ended at once by signal n.

Examples:
  kvblend-server --model models/SmolLM2-135M-Instruct.Q4_1.gguf
  kvblend-server --model model.gguf --grpc-address 0.0.0.0:50051 --http-address 0.0.0.0:8090 --chunk-store-bytes 64GiB
  kvblend-server --config /etc/kvblend/server.conf
  curl -s http://127.0.0.1:8090/readyz)";

constexpr int64_t kMaxBytes = int64_t{1} << 60;

// "chunk-store-bytes" -> "KVBLEND_CHUNK_STORE_BYTES"
std::string EnvironmentName(const std::string& option) {
  std::string name = "KVBLEND_";
  for (char c : option)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// All options, bound to the fields of one ServerConfig, which must outlive the App.
class Options {
 public:
  Options(CLI::App* app, ServerConfig* config) : app_(app) {
    AddModelAndCompute(&config->engine);
    AddMemory(&config->engine);
    AddRedis(&config->engine.chunk_redis);
    AddBlending(&config->engine);
    AddLimits(config);
    AddServing(config);
  }

 private:
  // Names an option after its first long name; `extra_names` are accepted as well.
  template <typename T>
  CLI::Option* Add(const std::string& name, T* value, const std::string& help,
                   const std::string& extra_names = "") {
    CLI::Option* option = app_->add_option("--" + name + extra_names, *value, help);
    return option->capture_default_str()->group(group_)->envname(EnvironmentName(name));
  }
  CLI::Option* AddBytes(const std::string& name, int64_t* value, int64_t min, int64_t max,
                        const std::string& help) {
    return Add(name, value, help)
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->check(CLI::Range(min, max))
        ->type_name("BYTES");
  }

  void AddModelAndCompute(EngineOptions* engine) {
    group_ = "Model and computation";
    Add("model", &engine->model_path, "GGUF file to serve")->required()->type_name("FILE");
    Add("device", &engine->device,
        "What computes: auto (a usable GPU, else the CPU), cpu, cuda, cuda:N (the N-th visible GPU), or "
        "reference (slow, for comparisons)")
        ->type_name("DEVICE")
        ->check([](const std::string& device) { return std::string(CheckDeviceName(device).message()); });
    Add("threads", &engine->num_threads, "Threads that compute; 0: one per available processor")
        ->check(CLI::Range(0, 1024));
    app_->add_flag("--pin-threads", engine->pin_threads,
                   "Pin each worker thread to a processor of its own (off by default)")
        ->group(group_)
        ->envname(EnvironmentName("pin-threads"));
    Add("gemm", &engine->gemm, "Arithmetic of matrix products on the cpu backend")
        ->check(CLI::IsMember({"auto", "bf16", "f32", "int8"}));
    app_->add_flag("--self-check,!--no-self-check", engine->self_check,
                   "At start-up, check on a short prompt that ratio 1 equals full prefill (on by default)")
        ->group(group_)
        ->envname(EnvironmentName("self-check"));
  }

  void AddMemory(EngineOptions* engine) {
    group_ = "Memory";
    Add("kv-dtype", &engine->kv_dtype,
        "Element type of KV in pages: auto is bf16, or f32 with f32 matrix products; int8 takes half of "
        "bf16's "
        "memory")
        ->check(CLI::IsMember({"auto", "bf16", "f16", "f32", "int8"}));
    Add("chunk-format", &engine->chunk_format,
        "Form of KV in stored chunks: auto is int8, or the kv-dtype where that is given")
        ->check(CLI::IsMember({"auto", "int8", "int4", "fp8", "bf16", "f16", "f32"}));
    Add("max-context-tokens", &engine->max_context_tokens,
        "Most tokens of a prompt and its answer; 0: the model's own context length")
        ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
    Add("page-size", &engine->page_size, "Tokens per KV page")->check(CLI::Range(1, 1024));
    AddBytes("chunk-store-bytes", &engine->chunk_store_bytes, 0, kMaxBytes,
             "Main memory for stored chunks (default 4GiB)");
    Add("chunk-disk-path", &engine->chunk_disk_path,
        "Folder where stored chunks outlive the server; empty: none. One server per folder");
    AddBytes("chunk-disk-bytes", &engine->chunk_disk_bytes, 0, kMaxBytes,
             "Disk space for stored chunks (default 32GiB)");
    Add("chunk-namespace-share", &engine->namespace_quotas.default_share,
        "Share of main memory and disk for stored chunks that one namespace may fill")
        ->check(CLI::Range(0.0, 1.0))
        ->type_name("SHARE");
    app_->add_option_function<std::vector<std::string>>(
            "--chunk-namespace-shares",
            [engine](const std::vector<std::string>& shares) {
              for (const std::string& share : shares) AddShare(share, &engine->namespace_quotas);
            },
            "The same for single namespaces: NAME=SHARE[,NAME=SHARE...]")
        ->delimiter(',')
        ->type_name("NAME=SHARE")
        ->group(group_)
        ->envname(EnvironmentName("chunk-namespace-shares"));
    app_->add_flag("--prefetch-queued,!--no-prefetch-queued", engine->prefetch_queued,
                   "Bring stored chunks into main memory while their prompt waits (on by default)")
        ->group(group_)
        ->envname(EnvironmentName("prefetch-queued"));
  }

  void AddBlending(EngineOptions* engine) {
    group_ = "Blending";
    app_->add_option_function<std::string>(
            "--ratio", [engine](const std::string& text) { SetRatio(text, &engine->ratio); },
            "For requests that do not say: share of the reused tokens to recompute, 0 to 1, or auto: as many "
            "as "
            "loading hides")
        ->default_str("0.15")
        ->type_name("R")
        ->group(group_)
        ->envname(EnvironmentName("ratio"));
    Add("ratio-min", &engine->ratio.min, "auto: recompute at least this share")->check(CLI::Range(0.0, 1.0));
    Add("ratio-max", &engine->ratio.max, "auto: recompute at most this share")->check(CLI::Range(0.0, 1.0));
    app_->add_option_function<std::string>(
            "--load-pipeline-depth",
            [engine](const std::string& text) { SetPipelineDepth(text, &engine->load_pipeline_depth); },
            "While a layer computes, so many more are on their way from disk or network; all: every layer "
            "from "
            "the beginning")
        ->default_str(std::to_string(engine->load_pipeline_depth))
        ->type_name("N")
        ->group(group_)
        ->envname(EnvironmentName("load-pipeline-depth"));
  }

  static void SetRatio(const std::string& text, RatioOptions* ratio) {
    if (text == "auto") {
      ratio->mode = RatioMode::kAuto;
      return;
    }
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || !(value >= 0 && value <= 1)) {
      throw CLI::ValidationError("--ratio", "is '" + text + "'; allowed: 0 to 1, or auto");
    }
    ratio->mode = RatioMode::kFixed;
    ratio->ratio = value;
  }
  static void SetPipelineDepth(const std::string& text, int32_t* depth) {
    if (text == "all") {
      *depth = 0;
      return;
    }
    if (!absl::SimpleAtoi(text, depth) || *depth < 0 || *depth > kMaxLoadPipelineDepth) {
      throw CLI::ValidationError(
          "--load-pipeline-depth",
          "is '" + text + "'; allowed: 1 to " + std::to_string(kMaxLoadPipelineDepth) + ", or all (0)");
    }
  }

  void AddRedis(RedisOptions* redis) {
    group_ = "Chunks shared through Redis";
    CLI::Option* nodes =
        Add("chunk-redis", &redis->nodes,
            "Redis Cluster, or one Redis server, through which servers share stored chunks; empty: none")
            ->type_name("HOST:PORT[,HOST:PORT...]");
    nodes->check([](const std::string& text) {
      if (text.empty()) return std::string();
      const auto endpoints = store::redis::ParseEndpoints(text);
      return endpoints.ok() ? std::string() : std::string(endpoints.status().message());
    });
    Add("chunk-redis-user", &redis->user, "Name in Redis's ACL; empty: the default user");
    // A password among the arguments would be there for every user of the machine to see.
    Add("chunk-redis-password-file", &redis->password_file,
        "File whose first line is the password; or KVBLEND_CHUNK_REDIS_PASSWORD in the environment")
        ->check(CLI::ExistingFile)
        ->type_name("FILE");
    app_->add_flag("--chunk-redis-tls", redis->tls, "Speak TLS with Redis, and check its certificates")
        ->group(group_)
        ->envname(EnvironmentName("chunk-redis-tls"));
    const auto add_file = [&](const std::string& name, std::string* path, const std::string& help) {
      return Add(name, path, help)->check(CLI::ExistingFile)->type_name("FILE");
    };
    add_file("chunk-redis-tls-ca", &redis->tls_ca, "PEM certificate authorities; none: the system's");
    CLI::Option* certificate = add_file("chunk-redis-tls-certificate", &redis->tls_certificate,
                                        "PEM certificate that Redis is shown, with --chunk-redis-tls-key");
    CLI::Option* key = add_file("chunk-redis-tls-key", &redis->tls_key, "PEM private key of the certificate");
    certificate->needs(key);
    key->needs(certificate);
    Add("chunk-redis-tls-server-name", &redis->tls_server_name,
        "Name that the nodes' certificates are for; empty: each node's own host");
    Add("chunk-redis-ttl", &redis->ttl_seconds, "How long a chunk stays after its last use; 0: for ever")
        ->check(CLI::Range(0.0, 86400.0 * 3650))
        ->type_name("SECONDS");
    Add("chunk-redis-budget", &redis->budget_seconds, "What a slow or dead Redis may cost a request")
        ->check(CLI::Range(0.001, 60.0))
        ->type_name("SECONDS");
    AddBytes("chunk-redis-max-value-bytes", &redis->max_value_bytes, 1, int64_t{512} << 20,
             "Chunks with a larger section are not stored there (default 64MiB)");
    Add("chunk-redis-connections", &redis->connections_per_node,
        "Connections per node for reading; one more writes")
        ->check(CLI::Range(1, 64));
  }

  void AddLimits(ServerConfig* config) {
    group_ = "Limits";
    Add("max-queued-requests", &config->engine.max_queued_requests,
        "Requests that may wait; one more gets RESOURCE_EXHAUSTED")
        ->check(CLI::Range(1, 1'000'000));
    Add("max-batch-size", &config->engine.max_batch_size, "Answers that are decoded together")
        ->check(CLI::Range(1, kMaxBatchSize));
    Add("max-batch-tokens", &config->engine.max_batch_tokens,
        "KV of answers that are decoded together, each with all that may still come, in tokens; 0: four "
        "times the "
        "context")
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
    Add("max-chunks-per-request", &config->engine.max_chunks_per_request, "Chunks in one request")
        ->check(CLI::Range(1, 1'000'000));
    AddBytes("max-text-bytes", &config->engine.max_text_bytes, 1, kMaxBytes,
             "All texts of one request together (default 8MiB)");
    AddBytes("max-message-bytes", &config->max_message_bytes, 1024, std::numeric_limits<int32_t>::max(),
             "One request message on the wire (default 16MiB)");
    Add("max-concurrent-streams", &config->max_concurrent_streams, "Calls at once on one connection")
        ->check(CLI::Range(1, 1'000'000));
  }

  void AddServing(ServerConfig* config) {
    group_ = "Serving";
    Add("grpc-address", &config->grpc_address,
        "Where gRPC listens: HOST:PORT, [IPV6]:PORT or unix:PATH; port 0: any free one", ",--listen");
    Add("http-address", &config->http_address,
        "Where /metrics, /healthz and /readyz are: HOST:PORT; port 0: any free one", ",--http-listen");
    CLI::Option* certificate = Add("tls-certificate", &config->tls_certificate_path,
                                   "PEM certificate chain; with --tls-key: gRPC over TLS")
                                   ->check(CLI::ExistingFile)
                                   ->type_name("FILE");
    CLI::Option* key = Add("tls-key", &config->tls_key_path, "PEM private key of the certificate")
                           ->check(CLI::ExistingFile)
                           ->type_name("FILE");
    certificate->needs(key);
    key->needs(certificate);
    app_->add_option_function<double>(
            "--drain-timeout", [config](double seconds) { config->drain_timeout = absl::Seconds(seconds); },
            "Seconds that accepted requests get to finish at shutdown")
        ->default_str(std::to_string(absl::ToInt64Seconds(config->drain_timeout)))
        ->check(CLI::Range(0.0, 86400.0))
        ->type_name("SECONDS")
        ->group(group_)
        ->envname(EnvironmentName("drain-timeout"));
    Add("port-file", &config->port_file,
        "File to write \"grpc=PORT\" and \"http=PORT\" to, one per line, once listening")
        ->type_name("FILE");
    Add("log-level", &config->log_level, "Least important messages to log, to stderr")
        ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  }

  static void AddShare(const std::string& setting, NamespaceQuotas* quotas) {
    const size_t equals = setting.rfind('=');
    double share = 0;
    if (equals == std::string::npos || !CLI::detail::lexical_cast(setting.substr(equals + 1), share) ||
        !(share > 0 && share <= 1)) {
      throw CLI::ValidationError("--chunk-namespace-shares",
                                 "'" + setting + "' is not NAME=SHARE with a share above 0, at most 1");
    }
    quotas->named[setting.substr(0, equals)] = share;
  }

  CLI::App* const app_;
  std::string group_;
};

// CLI11's messages may span lines; callers show one.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

ParsedConfig ParseConfig(int argc, const char* const* argv, const std::string& version) {
  ParsedConfig parsed;
  try {
    ServerConfig config;
    CLI::App app(kDescription, "kvblend-server");
    app.footer(kFooter);
    app.set_version_flag("--version", "kvblend-server " + version);
    app.set_config("--config", "", "File with settings, in INI or TOML form")->envname("KVBLEND_CONFIG");
    const Options options(&app, &config);
    try {
      app.parse(argc, argv);
      if (config.engine.ratio.min > config.engine.ratio.max) {
        throw CLI::ValidationError("--ratio-min", "is above --ratio-max");
      }
      if (const char* password = std::getenv("KVBLEND_CHUNK_REDIS_PASSWORD"); password != nullptr) {
        config.engine.chunk_redis.password = password;
      }
      parsed.config = std::move(config);
    } catch (const CLI::CallForHelp&) {
      parsed.output = app.help();
    } catch (const CLI::CallForVersion& call) {
      parsed.output = std::string(call.what()) + "\n";
    } catch (const CLI::Error& error) {
      parsed.exit_code = 2;
      parsed.error_output = "kvblend-server: " + OneLine(error.what()) + "; see kvblend-server --help\n";
    }
  } catch (const std::exception& error) {
    parsed.exit_code = 2;
    parsed.error_output = "kvblend-server: " + OneLine(error.what()) + "\n";
  }
  return parsed;
}

}  // namespace kvblend::server
