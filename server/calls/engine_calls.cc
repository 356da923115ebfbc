#include "server/calls/engine_calls.h"

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/chunk_catalog.h"
#include "server/convert/reports.h"
#include "server/convert/requests.h"

namespace kvblend::server {
namespace {

constexpr int32_t kDefaultPageSize = 100;

/// The time in which an event is handed over, from its construction to the end of the block.
class StreamSpan {
 public:
  explicit StreamSpan(RequestTrace* trace) : trace_(trace), begin_(TraceNow(trace)) {}
  ~StreamSpan() {
    if (trace_ == nullptr) return;
    trace_->Add(
        {.track = RequestTrace::Track::kStream, .name = "write", .begin = begin_, .end = trace_->Now()});
  }
  StreamSpan(const StreamSpan&) = delete;
  StreamSpan& operator=(const StreamSpan&) = delete;

 private:
  RequestTrace* const trace_;
  const int64_t begin_;
};

class GenerateToSink : public GenerateObserver {
 public:
  GenerateToSink(std::shared_ptr<EventSink<v1::GenerateEvent>> sink, std::shared_ptr<RequestTrace> trace)
      : sink_(std::move(sink)), trace_(std::move(trace)) {}

  void OnPrompt(const PromptReport& report) override {
    const StreamSpan traced(trace_.get());
    v1::GenerateEvent event;
    *event.mutable_prompt() = ToProto(report);
    sink_->OnEvent(event);
  }
  void OnText(const TextDelta& delta) override {
    const StreamSpan traced(trace_.get());
    v1::GenerateEvent event;
    *event.mutable_text() = ToProto(delta);
    sink_->OnEvent(event);
  }
  void OnDone(const absl::Status& status, const GenerateResult& result) override {
    if (status.ok()) {
      const StreamSpan traced(trace_.get());
      v1::GenerateEvent event;
      *event.mutable_finished() = ToProto(result);
      sink_->OnEvent(event);
    }
    sink_->OnDone(status);
  }

 private:
  const std::shared_ptr<EventSink<v1::GenerateEvent>> sink_;
  const std::shared_ptr<RequestTrace> trace_;
};

class ScoreToSink : public ScoreObserver {
 public:
  explicit ScoreToSink(std::shared_ptr<EventSink<v1::ScoreEvent>> sink) : sink_(std::move(sink)) {}

  void OnPrompt(const PromptReport& report) override {
    v1::ScoreEvent event;
    *event.mutable_prompt() = ToProto(report);
    sink_->OnEvent(event);
  }
  void OnToken(const ScoredToken& token) override {
    v1::ScoreEvent event;
    *event.mutable_token() = ToProto(token);
    sink_->OnEvent(event);
  }
  void OnDone(const absl::Status& status) override { sink_->OnDone(status); }

 private:
  const std::shared_ptr<EventSink<v1::ScoreEvent>> sink_;
};

class PutToSink : public PutChunksObserver {
 public:
  explicit PutToSink(std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) : sink_(std::move(sink)) {}

  void OnProgress(const PutChunkProgress& progress) override { sink_->OnEvent(ToProto(progress)); }
  void OnDone(const absl::Status& status) override { sink_->OnDone(status); }

 private:
  const std::shared_ptr<EventSink<v1::PutChunkProgress>> sink_;
};

/// The engine's request, with everything about the caller.
template <typename WireRequest>
auto Convert(WireRequest request, const CallerContext& caller) -> decltype(FromProto(std::move(request))) {
  auto converted = FromProto(std::move(request));
  if (converted.ok()) {
    converted->caller.fairness_key = absl::StrCat(converted->caller.tenant_namespace, "\n", caller.client);
    converted->caller.deadline = caller.deadline;
    if constexpr (!std::is_same_v<WireRequest, v1::PutChunksRequest>) {
      converted->caller.trace = caller.trace;
      converted->caller.on_dequeued = caller.on_dequeued;
    }
  }
  return converted;
}

}  // namespace

EngineCalls::EngineCalls(EngineSlot* engine_slot, ServingInfo serving_info)
    : engine_slot_(*engine_slot), serving_info_(std::move(serving_info)) {}

Calls::Started EngineCalls::Generate(v1::GenerateRequest request, const CallerContext& caller,
                                     std::shared_ptr<EventSink<v1::GenerateEvent>> sink) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(auto converted, Convert(std::move(request), caller));
  return engine->Generate(std::move(converted),
                          std::make_shared<GenerateToSink>(std::move(sink), caller.trace));
}

Calls::Started EngineCalls::Score(v1::ScoreRequest request, const CallerContext& caller,
                                  std::shared_ptr<EventSink<v1::ScoreEvent>> sink) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(auto converted, Convert(std::move(request), caller));
  return engine->Score(std::move(converted), std::make_shared<ScoreToSink>(std::move(sink)));
}

Calls::Started EngineCalls::Put(v1::PutChunksRequest request, const CallerContext& caller,
                                std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(auto converted, Convert(std::move(request), caller));
  return engine->PutChunks(std::move(converted), std::make_shared<PutToSink>(std::move(sink)));
}

absl::StatusOr<v1::SplitDocumentResponse> EngineCalls::Split(v1::SplitDocumentRequest request,
                                                             const CallerContext& caller) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(SplitDocumentRequest converted, FromProto(std::move(request)));
  converted.gone = caller.gone;
  KVBLEND_ASSIGN_OR_RETURN(const DocumentChunks chunks, engine->SplitDocument(converted));
  return ToProto(chunks);
}

absl::StatusOr<v1::PrefetchChunksResponse> EngineCalls::Prefetch(v1::PrefetchChunksRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(PrefetchChunksRequest converted, FromProto(std::move(request)));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<PrefetchedChunk> chunks,
                           engine->PrefetchChunks(std::move(converted)));
  return ToProto(chunks);
}

absl::StatusOr<v1::StatChunksResponse> EngineCalls::Stat(v1::StatChunksRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<ChunkKey> keys, ParseKeys(request.keys()));
  v1::StatChunksResponse response;
  const std::vector<std::optional<ChunkInfo>> infos = engine->chunks().StatAll(request.namespace_(), keys);
  const std::vector<bool> wanted = request.durable() ? engine->chunks().AreDurable(request.namespace_(), keys)
                                                     : std::vector<bool>(keys.size(), true);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (infos[i].has_value() && wanted[i]) {
      *response.add_chunks() = ToProto(*infos[i]);
    } else {
      response.add_missing_keys(keys[i].ToHex());
    }
  }
  return response;
}

absl::StatusOr<v1::ListChunksResponse> EngineCalls::List(v1::ListChunksRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
  KVBLEND_ASSIGN_OR_RETURN(
      const ChunkPage page,
      engine->chunks().List(request.namespace_(), request.page_token(),
                            request.has_page_size() ? request.page_size() : kDefaultPageSize));
  v1::ListChunksResponse response;
  for (const ChunkInfo& info : page.chunks) *response.add_chunks() = ToProto(info);
  response.set_next_page_token(page.next_page_token);
  return response;
}

absl::StatusOr<v1::DeleteChunksResponse> EngineCalls::Delete(v1::DeleteChunksRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
  v1::DeleteChunksResponse response;
  if (request.all()) {
    if (!request.keys().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("keys has ", request.keys_size(), " keys; allowed: none, as all is set"));
    }
    const ChunkCatalog::Cleared cleared = engine->chunks().Clear(request.namespace_());
    response.set_deleted(cleared.erased);
    response.set_failed(cleared.failed);
    for (const ChunkKey& key : cleared.failed_keys) response.add_failed_keys(key.ToHex());
    response.set_failure(std::string(cleared.failure.message()));
    return response;
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<ChunkKey> keys, ParseKeys(request.keys()));
  for (const ChunkKey& key : keys) {
    const absl::StatusOr<bool> erased = engine->chunks().Erase(request.namespace_(), key);
    if (!erased.ok()) {
      if (response.failed() == 0) response.set_failure(std::string(erased.status().message()));
      response.set_failed(response.failed() + 1);
      response.add_failed_keys(key.ToHex());
    } else if (*erased) {
      response.set_deleted(response.deleted() + 1);
    } else {
      response.add_missing_keys(key.ToHex());
    }
  }
  return response;
}

absl::StatusOr<v1::PinChunksResponse> EngineCalls::Pin(v1::PinChunksRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<ChunkKey> keys, ParseKeys(request.keys()));
  ChunkCatalog& chunks = engine->chunks();
  const bool pin = !request.has_pinned() || request.pinned();
  v1::PinChunksResponse response;
  for (const ChunkKey& key : keys) {
    const absl::Status status =
        pin ? chunks.Pin(request.namespace_(), key) : chunks.Unpin(request.namespace_(), key);
    if (status.ok()) {
      response.set_changed(response.changed() + 1);
    } else if (absl::IsNotFound(status)) {
      response.add_missing_keys(key.ToHex());
    } else {
      return status;
    }
  }
  return response;
}

absl::StatusOr<v1::GetInfoResponse> EngineCalls::GetInfo(v1::GetInfoRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_RETURN_IF_ERROR(CheckNamespace("namespace", request.namespace_()));
  v1::GetInfoResponse info = ToProto(engine->info(), engine->Stats(), serving_info_.engine_options);
  info.mutable_store()->set_namespace_byte_limit(engine->chunks().RoomOf(request.namespace_()));
  info.mutable_limits()->set_max_message_bytes(serving_info_.max_message_bytes);
  info.set_uptime_seconds(absl::ToDoubleSeconds(SteadyNow() - started_));
  return info;
}

absl::StatusOr<v1::CorrectionInfo> EngineCalls::UpdateCorrection(v1::UpdateCorrectionRequest request) {
  KVBLEND_ASSIGN_OR_RETURN(Engine * engine, engine_slot_.Get());
  KVBLEND_ASSIGN_OR_RETURN(const CorrectionAction action, FromProto(request));
  KVBLEND_ASSIGN_OR_RETURN(const CorrectionStats stats, engine->UpdateCorrection(action));
  return ToProto(stats);
}

absl::Status EngineCalls::CheckHealth() { return engine_slot_.Get().status(); }

}  // namespace kvblend::server
