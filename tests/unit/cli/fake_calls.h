// Calls without an engine: they record what they are asked and answer as the test says, on the caller's
// thread.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "server/calls/calls.h"
#include "server/convert/enums.h"
#include "tests/support/message_text.h"

namespace kvblend::server::cli {

class FakeCalls : public Calls {
 public:
  template <typename Event>
  using Send = std::function<void(const Event&)>;

  // What was asked, in order.
  std::vector<v1::GenerateRequest> generated;
  std::vector<v1::ScoreRequest> scored;
  std::vector<v1::PutChunksRequest> put;
  std::vector<v1::PrefetchChunksRequest> prefetched;
  std::vector<v1::SplitDocumentRequest> split;
  std::vector<v1::CorrectionAction> correction_actions;
  std::vector<absl::Time> deadlines;  // of streams
  absl::Mutex mutex;                  // commands may call Put on several threads
  std::vector<std::string> log;       // one word per call

  // How to answer.
  std::function<absl::Status(const v1::GenerateRequest&, const Send<v1::GenerateEvent>&)> on_generate;
  std::function<absl::Status(const v1::ScoreRequest&, const Send<v1::ScoreEvent>&)> on_score;
  absl::Status put_status;
  absl::Status split_status;
  std::function<absl::Status(const v1::PutChunksRequest&)> on_put;        // before anything else
  std::function<void()> after_put;                                        // when all is stored
  std::function<absl::Status(const v1::SplitDocumentRequest&)> on_split;  // before anything else
  int64_t bytes_per_token = 1;
  int64_t next_byte_offset = 0;  // how wrong SplitDocumentResponse is
  v1::GetInfoResponse info;
  v1::CorrectionInfo correction;
  absl::Status health;
  std::map<std::string, v1::ChunkInfo> stored;  // by key
  std::set<std::string> not_durable;            // of stored
  v1::GetInfoRequest info_request;              // the last
  std::set<std::string> undeletable;            // keys
  size_t page_size = 2;

  /// A pointer for those that want to own their calls.
  std::shared_ptr<Calls> Lend() { return {std::shared_ptr<Calls>(), this}; }

  Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                   std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override {
    generated.push_back(request);
    deadlines.push_back(caller.deadline);
    log.push_back("generate");
    const Send<v1::GenerateEvent> send = [&](const v1::GenerateEvent& event) { sink->OnEvent(event); };
    sink->OnDone(on_generate ? on_generate(request, send) : Hello(request, send));
    return std::make_shared<Handle>();
  }

  Started Score(v1::ScoreRequest request, const CallerContext&,
                std::shared_ptr<EventSink<v1::ScoreEvent>> sink) override {
    scored.push_back(request);
    log.push_back("score");
    const Send<v1::ScoreEvent> send = [&](const v1::ScoreEvent& event) { sink->OnEvent(event); };
    if (on_score) {
      sink->OnDone(on_score(request, send));
      return std::make_shared<Handle>();
    }
    v1::ScoreEvent event;
    *event.mutable_prompt() = Report(request.prompt(), request.blend());
    send(event);
    send(test_support::FromText<v1::ScoreEvent>(
        R"(token { token_id: 5  text: "P"  logprob: -0.5  top_token_id: 5  top_logprob: -0.5 })"));
    sink->OnDone(absl::OkStatus());
    return std::make_shared<Handle>();
  }

  Started Put(v1::PutChunksRequest request, const CallerContext&,
              std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) override {
    if (on_put) KVBLEND_RETURN_IF_ERROR(on_put(request));
    absl::MutexLock lock(&mutex);
    put.push_back(request);
    log.push_back("put");
    if (!put_status.ok()) return put_status;
    for (int32_t i = 0; i < request.chunks_size(); ++i) {
      v1::PutChunkProgress progress;
      progress.set_key(KeyOf(request, request.chunks(i).size()));
      v1::ChunkInfo& chunk = stored[progress.key()];
      progress.set_already_present(!chunk.key().empty());
      if (chunk.key().empty()) chunk = Chunk(progress.key(), 3);
      progress.set_index(i);
      progress.set_done(i + 1);
      progress.set_total(request.chunks_size());
      progress.set_num_tokens(3);
      sink->OnEvent(progress);
    }
    if (after_put) after_put();
    sink->OnDone(absl::OkStatus());
    return std::make_shared<Handle>();
  }

  /// A chunk for every chunk_tokens * bytes_per_token bytes, without overlap; whole ones only of a text that
  /// goes on. Keys are as Put gives them: by length.
  absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                  const CallerContext&) override {
    if (on_split) KVBLEND_RETURN_IF_ERROR(on_split(request));
    absl::MutexLock lock(&mutex);
    split.push_back(request);
    if (!split_status.ok()) return split_status;
    v1::SplitDocumentResponse response;
    const auto size = static_cast<int64_t>(request.text().size());
    const int64_t chunk_tokens = request.has_chunk_tokens() ? request.chunk_tokens() : 512;
    int64_t begin = 0;
    while (begin < size) {
      const int64_t end = std::min<int64_t>(begin + chunk_tokens * bytes_per_token, size);
      if (end == size && request.goes_on()) break;
      v1::DocumentChunk& chunk = *response.add_chunks();
      chunk.set_begin_byte(begin);
      chunk.set_end_byte(end);
      chunk.set_num_tokens(3);
      chunk.set_stored_bytes(1000);
      chunk.set_key(KeyOf(request, end - begin));
      chunk.set_stored(stored.contains(chunk.key()));
      begin = end;
    }
    response.set_next_byte(begin + next_byte_offset);
    return response;
  }

  absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(v1::PrefetchChunksRequest request) override {
    prefetched.push_back(request);
    v1::PrefetchChunksResponse response;
    for (const std::string& text : request.chunks()) {
      v1::PrefetchedChunk& chunk = *response.add_chunks();
      chunk.set_key(KeyOf(request, text.size()));
      chunk.set_num_tokens(3);
      if (stored.contains(chunk.key())) chunk.set_tier(stored[chunk.key()].tier());
    }
    return response;
  }

  absl::StatusOr<v1::StatChunksResponse> Stat(v1::StatChunksRequest request) override {
    v1::StatChunksResponse response;
    ForKeys(request, response, [&](const std::string& key) {
      if (request.durable() && not_durable.contains(key)) return response.add_missing_keys(key);
      *response.add_chunks() = stored[key];
    });
    return response;
  }

  absl::StatusOr<v1::ListChunksResponse> List(v1::ListChunksRequest request) override {
    v1::ListChunksResponse response;
    auto it = stored.lower_bound(request.page_token());
    for (; it != stored.end() && response.chunks().size() < static_cast<int>(page_size); ++it) {
      *response.add_chunks() = it->second;
    }
    if (it != stored.end()) response.set_next_page_token(it->first);
    return response;
  }

  absl::StatusOr<v1::DeleteChunksResponse> Delete(v1::DeleteChunksRequest request) override {
    log.push_back("delete");
    v1::DeleteChunksResponse response;
    if (request.all()) {
      response.set_deleted(static_cast<int64_t>(stored.size()));
      stored.clear();
    }
    ForKeys(request, response, [&](const std::string& key) {
      if (undeletable.contains(key)) {
        response.set_failed(response.failed() + 1);
        response.add_failed_keys(key);
        response.set_failure("redis: out of reach");
        return;
      }
      stored.erase(key);
      response.set_deleted(response.deleted() + 1);
    });
    return response;
  }

  absl::StatusOr<v1::PinChunksResponse> Pin(v1::PinChunksRequest request) override {
    v1::PinChunksResponse response;
    ForKeys(request, response, [&](const std::string& key) {
      stored[key].set_pinned(request.pinned());
      response.set_changed(response.changed() + 1);
    });
    return response;
  }

  absl::StatusOr<v1::GetInfoResponse> GetInfo(v1::GetInfoRequest request) override {
    info_request = std::move(request);
    return info;
  }
  absl::StatusOr<v1::CorrectionInfo> UpdateCorrection(v1::UpdateCorrectionRequest request) override {
    correction_actions.push_back(request.action());
    return correction;
  }
  absl::Status CheckHealth() override { return health; }

  static v1::ChunkInfo Chunk(const std::string& key, int32_t num_tokens = 0) {
    v1::ChunkInfo chunk;
    chunk.set_key(key);
    chunk.set_tier(v1::TIER_HOST_MEMORY);
    chunk.set_num_tokens(num_tokens);
    return chunk;
  }

  static v1::PromptReport Report(const v1::Prompt& prompt, const v1::BlendOptions& blend) {
    v1::PromptReport report;
    report.set_reuse(blend.reuse());
    report.set_policy(blend.policy());
    report.set_anchoring(blend.anchoring());
    report.set_prompt_tokens(100);
    for (int i = 0; i < prompt.chunks_size(); ++i) {
      v1::ChunkReport& chunk = *report.add_chunks();
      chunk.set_index(i);
      chunk.set_source(v1::CHUNK_SOURCE_BLENDED);
      chunk.set_tier(v1::TIER_HOST_MEMORY);
      chunk.set_num_tokens(10);
      chunk.set_recomputed_tokens(2);
      chunk.set_key(absl::StrCat("k", i));
    }
    return report;
  }
  static v1::GenerateEvent PromptEvent(const v1::GenerateRequest& request) {
    v1::GenerateEvent event;
    *event.mutable_prompt() = Report(request.prompt(), request.blend());
    return event;
  }
  static v1::GenerateEvent TextEvent(const std::string& text, const std::vector<int32_t>& token_ids) {
    v1::GenerateEvent event;
    event.mutable_text()->set_text(text);
    event.mutable_text()->mutable_token_ids()->Assign(token_ids.begin(), token_ids.end());
    return event;
  }
  static v1::GenerateEvent FinishedEvent(v1::FinishReason reason, double first_token_seconds = 0) {
    v1::GenerateEvent event;
    event.mutable_finished()->set_reason(reason);
    event.mutable_finished()->mutable_timings()->set_time_to_first_token_seconds(first_token_seconds);
    return event;
  }

 private:
  class Handle : public RequestHandle {
   public:
    void Cancel() override {}
  };

  /// Calls `found` with every key that is stored, and names the others as missing.
  template <typename Request, typename Response, typename Found>
  void ForKeys(const Request& request, Response& response, const Found& found) {
    for (const std::string& key : request.keys()) {
      stored.contains(key) ? found(key) : response.add_missing_keys(key);
    }
  }

  /// "key-anchored-12": by anchoring and length.
  template <typename Request>
  static std::string KeyOf(const Request& request, size_t bytes) {
    const bool isolated = request.anchoring() == v1::ANCHORING_ISOLATED;
    return absl::StrCat("key-", isolated ? "isolated-" : "anchored-", bytes);
  }

  static absl::Status Hello(const v1::GenerateRequest& request, const Send<v1::GenerateEvent>& send) {
    send(PromptEvent(request));
    send(TextEvent("Hello", {7}));
    send(TextEvent(" you", {8}));
    send(FinishedEvent(v1::FINISH_REASON_END_OF_TEXT));
    return absl::OkStatus();
  }
};

}  // namespace kvblend::server::cli
