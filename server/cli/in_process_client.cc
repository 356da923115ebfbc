#include "server/cli/in_process_client.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/api/chunk_key.h"
#include "engine/api/status_macros.h"
#include "engine/store/chunk_store.h"
#include "server/cli/event_queue.h"

namespace kvblend::server::cli {
namespace {

constexpr int32_t kDefaultPageSize = 100;

struct GenerateDone {
  absl::Status status;
  GenerateResult result;
};

class GenerateQueue : public GenerateObserver {
 public:
  using Event = std::variant<PromptReport, TextDelta, GenerateDone>;
  void OnPrompt(const PromptReport& report) override { events.Push(report); }
  void OnText(const TextDelta& delta) override { events.Push(delta); }
  void OnDone(const absl::Status& status, const GenerateResult& result) override {
    events.Push(GenerateDone{status, result});
  }
  EventQueue<Event> events;
};

class ScoreQueue : public ScoreObserver {
 public:
  using Event = std::variant<PromptReport, ScoredToken, absl::Status>;
  void OnPrompt(const PromptReport& report) override { events.Push(report); }
  void OnToken(const ScoredToken& token) override { events.Push(token); }
  void OnDone(const absl::Status& status) override { events.Push(status); }
  EventQueue<Event> events;
};

class PutChunksQueue : public PutChunksObserver {
 public:
  using Event = std::variant<PutChunkProgress, absl::Status>;
  void OnProgress(const PutChunkProgress& progress) override { events.Push(progress); }
  void OnDone(const absl::Status& status) override { events.Push(status); }
  EventQueue<Event> events;
};

ChunkInfo Convert(const kvblend::ChunkInfo& chunk) {
  return {.key = chunk.key.ToHex(),
          .tier = chunk.tier,
          .num_tokens = chunk.num_tokens,
          .size_bytes = chunk.bytes,
          .pinned = chunk.pinned,
          .label = chunk.label,
          .anchor_hash = kvblend::ToHex(chunk.anchor_hash),
          .hits = chunk.hits,
          .created_unix_seconds = absl::ToDoubleSeconds(chunk.created - absl::UnixEpoch()),
          .last_used_unix_seconds = absl::ToDoubleSeconds(chunk.last_used - absl::UnixEpoch()),
          .compute_seconds = chunk.compute_cost_seconds};
}

class InProcessClient : public EngineClient {
 public:
  InProcessClient(std::unique_ptr<Engine> engine, Cancellation& cancellation)
      : engine_(std::move(engine)), cancellation_(cancellation) {}
  ~InProcessClient() override {
    // Chunks on disk outlive this process: those that the response left to be computed are part of its work.
    const bool finish = engine_->Stats().disk.has_value() && !cancellation_.requested();
    engine_->Drain(finish ? absl::InfiniteFuture() : absl::InfinitePast()).IgnoreError();
  }

  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request,
                                          const GenerateCallbacks& callbacks) override {
    const auto queue = std::make_shared<GenerateQueue>();
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<RequestHandle> handle, engine_->Generate(request, queue));
    const Cancellation::Listener listener(cancellation_, [&] { handle->Cancel(); });
    while (true) {
      const GenerateQueue::Event event = queue->events.Pop();
      if (const auto* report = std::get_if<PromptReport>(&event)) {
        if (callbacks.on_prompt) callbacks.on_prompt(*report);
      } else if (const auto* delta = std::get_if<TextDelta>(&event)) {
        if (callbacks.on_text) callbacks.on_text(*delta);
      } else {
        const auto& done = std::get<GenerateDone>(event);
        KVBLEND_RETURN_IF_ERROR(done.status);
        return done.result;
      }
    }
  }

  absl::StatusOr<Scores> Score(const ScoreRequest& request) override {
    const auto queue = std::make_shared<ScoreQueue>();
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<RequestHandle> handle, engine_->Score(request, queue));
    const Cancellation::Listener listener(cancellation_, [&] { handle->Cancel(); });
    Scores scores;
    while (true) {
      ScoreQueue::Event event = queue->events.Pop();
      if (auto* report = std::get_if<PromptReport>(&event)) {
        scores.prompt = std::move(*report);
      } else if (auto* token = std::get_if<ScoredToken>(&event)) {
        scores.tokens.push_back(std::move(*token));
      } else {
        KVBLEND_RETURN_IF_ERROR(std::get<absl::Status>(event));
        return scores;
      }
    }
  }

  absl::Status PutChunks(const PutChunksRequest& request,
                         const std::function<void(const PutChunkProgress&)>& on_progress) override {
    const auto queue = std::make_shared<PutChunksQueue>();
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<RequestHandle> handle, engine_->PutChunks(request, queue));
    const Cancellation::Listener listener(cancellation_, [&] { handle->Cancel(); });
    while (true) {
      const PutChunksQueue::Event event = queue->events.Pop();
      if (const auto* status = std::get_if<absl::Status>(&event)) return *status;
      if (on_progress) on_progress(std::get<PutChunkProgress>(event));
    }
  }

  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override {
    return engine_->SplitDocument(request);
  }

  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(const PrefetchChunksRequest& request) override {
    return engine_->PrefetchChunks(request);
  }

  absl::StatusOr<StatResult> StatChunks(const std::string& tenant_namespace,
                                        absl::Span<const std::string> keys) override {
    StatResult result;
    for (const std::string& hex : keys) {
      KVBLEND_ASSIGN_OR_RETURN(const kvblend::ChunkKey key, kvblend::ChunkKey::FromHex(hex));
      const auto chunk = engine_->chunks().Stat(tenant_namespace, key);
      if (chunk.ok()) {
        result.chunks.push_back(Convert(*chunk));
      } else {
        result.missing_keys.push_back(hex);
      }
    }
    return result;
  }

  absl::StatusOr<ChunkPage> ListChunks(const std::string& tenant_namespace, int32_t page_size,
                                       const std::string& page_token) override {
    KVBLEND_ASSIGN_OR_RETURN(
        const kvblend::ChunkPage page,
        engine_->chunks().List(tenant_namespace, page_token, page_size == 0 ? kDefaultPageSize : page_size));
    ChunkPage result{.chunks = {}, .next_page_token = page.next_page_token};
    for (const kvblend::ChunkInfo& chunk : page.chunks) result.chunks.push_back(Convert(chunk));
    return result;
  }

  absl::StatusOr<ChangeResult> DeleteChunks(const std::string& tenant_namespace,
                                            absl::Span<const std::string> keys) override {
    ChangeResult result;
    for (const std::string& hex : keys) {
      KVBLEND_ASSIGN_OR_RETURN(const kvblend::ChunkKey key, kvblend::ChunkKey::FromHex(hex));
      if (engine_->chunks().Erase(tenant_namespace, key)) {
        ++result.changed;
      } else {
        result.missing_keys.push_back(hex);
      }
    }
    return result;
  }

  absl::StatusOr<ChangeResult> DeleteAllChunks(const std::string& tenant_namespace) override {
    return ChangeResult{.changed = engine_->chunks().Clear(tenant_namespace), .missing_keys = {}};
  }

  absl::StatusOr<ChangeResult> PinChunks(const std::string& tenant_namespace,
                                         absl::Span<const std::string> keys, bool pinned) override {
    ChangeResult result;
    ChunkCatalog& store = engine_->chunks();
    for (const std::string& hex : keys) {
      KVBLEND_ASSIGN_OR_RETURN(const kvblend::ChunkKey key, kvblend::ChunkKey::FromHex(hex));
      const absl::Status status =
          pinned ? store.Pin(tenant_namespace, key) : store.Unpin(tenant_namespace, key);
      if (absl::IsNotFound(status)) {
        result.missing_keys.push_back(hex);
        continue;
      }
      KVBLEND_RETURN_IF_ERROR(status);
      ++result.changed;
    }
    return result;
  }

  absl::StatusOr<Info> GetInfo() override {
    const EngineStats stats = engine_->Stats();
    std::optional<DiskSummary> disk;
    if (stats.disk.has_value()) {
      disk = {.entries = stats.disk->entries,
              .used_bytes = stats.disk->bytes,
              .quota_bytes = stats.disk->quota_bytes,
              .pinned_entries = stats.disk->pinned_entries,
              .hits = stats.disk->opens,
              .evictions = stats.disk->evictions,
              .quarantined = stats.disk->quarantined,
              .failing = stats.disk->disk_full || stats.disk->write_failing || stats.disk->read_failing};
    }
    return Info{.engine = engine_->info(),
                .store = {.entries = stats.store.entries,
                          .used_bytes = stats.store.bytes,
                          .budget_bytes = stats.store.byte_budget,
                          .pinned_entries = stats.store.pinned_entries,
                          .lookups = stats.store.lookups,
                          .hits = stats.store.hits,
                          .evictions = stats.store.evictions},
                .disk = disk,
                .redis = std::nullopt,  // there are no flags for it
                .device_memory = stats.device_memory,
                .pages_used = stats.pages_used,
                .pages_total = stats.pages_total,
                .requests_waiting = stats.requests_waiting,
                .requests_running = stats.requests_running,
                .sequences_decoding = stats.sequences_decoding};
  }

  // An engine that exists has passed its self-check and accepts requests.
  absl::Status CheckHealth() override { return absl::OkStatus(); }

 private:
  const std::unique_ptr<Engine> engine_;
  Cancellation& cancellation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EngineClient>> CreateInProcessClient(const EngineOptions& options,
                                                                    Cancellation& cancellation) {
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(options));
  return CreateInProcessClient(std::move(engine), cancellation);
}

std::unique_ptr<EngineClient> CreateInProcessClient(std::unique_ptr<Engine> engine,
                                                    Cancellation& cancellation) {
  return std::make_unique<InProcessClient>(std::move(engine), cancellation);
}

}  // namespace kvblend::server::cli
