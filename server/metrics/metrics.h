// The server's metrics, in Prometheus' text form.
//
// Names, units and habits are those that dashboards for LLM servers know: seconds, bytes and tokens, counters
// end in _total, request metrics are named as elsewhere behind the prefix kvblend_. Labels take few values:
// none comes from clients; a tenant's name comes from the key file. docs/metrics.md lists what is exported.
//
// Thread-safe. Request metrics are pushed here as requests proceed; what the engine counts is pulled at
// scrape time through the callback given to SetEngine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/api/engine.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"
#include "server/metrics/tenant_families.h"

namespace kvblend::server {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  /// From now on scrapes include the engine's gauges and counters and kvblend_build_info. `stats` is called
  /// at every scrape, from any thread, until ResetEngine returns; nothing then.
  void SetEngine(const EngineInfo& info, std::function<EngineStats()> stats);
  void ResetEngine();

  /// Scrapes then include what tenants use. To be called before the first scrape; `counts` is called at every
  /// one, from any thread.
  void SetTenants(std::function<std::map<std::string, TenantCounts>()> counts);

  /// kvblend_ready: 1 while requests are accepted.
  void SetReady(bool ready);

  /// Every call's end; `method` and `code` as gRPC writes them ("Generate", "INVALID_ARGUMENT").
  void CountCall(std::string_view service, std::string_view method, std::string_view code);

  /// The same for calls over HTTP, whose methods are named alike ("ChatCompletions").
  void CountHttpCall(std::string_view method, std::string_view code);

  /// How long a request of Generate or Score was in the queue, whatever became of it.
  void ObserveQueueTime(double seconds);
  /// One that ended with an error before its first token.
  void CountWithoutFirstToken(std::string_view code);
  /// A request over HTTP that was refused with this status before it reached a handler, an idle connection
  /// that was closed because another took its place, and a connection that gRPC refused.
  void CountHttpRefusal(int status);
  void CountHttpEviction();
  void CountGrpcRefusal();

  /// One prompt's blend report, of Generate or Score.
  void ObservePrompt(const v1::PromptReport& report);
  /// The time between two pieces of one answer's text.
  void ObserveInterToken(double seconds);
  /// Tokens of an answer, as they come: many answers never come to their end.
  void CountGeneratedTokens(int64_t tokens);
  /// One finished Generate: latency, time per token, tokens, reason.
  void ObserveGenerate(const v1::GenerateFinished& finished);
  void CountScoredToken();
  void ObservePutChunk(const v1::PutChunkProgress& progress);

  /// The whole exposition, text format 0.0.4.
  std::string Expose() const;
  /// What of it means what one of vLLM's metrics means, under vLLM's names (vllm_names.h).
  /// `served_name`: what clients call the model; empty: the name in its file.
  std::string ExposeUnderVllmNames(const std::string& served_name = "") const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblend::server
