// An EngineClient without an engine: it records what it is asked and answers as the test says.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/status_macros.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

class FakeClient : public EngineClient {
 public:
  // What was asked, in order.
  std::vector<GenerateRequest> generated;
  std::vector<ScoreRequest> scored;
  std::vector<PutChunksRequest> put;
  std::vector<PrefetchChunksRequest> prefetched;
  std::vector<SplitDocumentRequest> split;
  absl::Mutex mutex;  // commands may call PutChunks on several threads
  std::vector<std::vector<std::string>> deleted;
  std::vector<std::string> log;  // one word per call

  // How to answer.
  std::function<absl::StatusOr<GenerateResult>(const GenerateRequest&, const GenerateCallbacks&)> on_generate;
  std::function<absl::StatusOr<Scores>(const ScoreRequest&)> on_score;
  absl::Status put_status;
  absl::Status split_status;
  std::function<absl::Status(const PutChunksRequest&)>
      on_put;  // on the caller's thread, before anything else
  int64_t bytes_per_token = 1;
  int64_t next_byte_offset = 0;  // how wrong SplitDocumentResponse is
  Info info_answer;
  absl::Status health;
  std::map<std::string, ChunkInfo> stored;  // by key
  size_t page_size = 2;

  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request,
                                          const GenerateCallbacks& callbacks) override {
    generated.push_back(request);
    log.push_back("generate");
    if (on_generate) return on_generate(request, callbacks);
    if (callbacks.on_prompt) callbacks.on_prompt(Report(request.prompt, request.blend));
    if (callbacks.on_text)
      callbacks.on_text({.text = "Hello", .token_ids = {7}, .logprobs = {}, .top_logprobs = {}});
    if (callbacks.on_text)
      callbacks.on_text({.text = " you", .token_ids = {8}, .logprobs = {}, .top_logprobs = {}});
    return GenerateResult{
        .finish_reason = FinishReason::kEndOfText, .stop_string = "", .completion_tokens = 2};
  }

  absl::StatusOr<Scores> Score(const ScoreRequest& request) override {
    scored.push_back(request);
    log.push_back("score");
    if (on_score) return on_score(request);
    Scores scores{.prompt = Report(request.prompt, request.blend), .tokens = {}};
    scores.tokens.push_back({.token_id = 5,
                             .text = "P",
                             .logprob = -0.5,
                             .top_token_id = 5,
                             .top_logprob = -0.5,
                             .distribution = {}});
    return scores;
  }

  /// A chunk for every chunk_tokens * bytes_per_token bytes, without overlap; whole ones only of a text that
  /// goes on. Keys are as PutChunks gives them: by length.
  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override {
    absl::MutexLock lock(&mutex);
    split.push_back(request);
    if (!split_status.ok()) return split_status;
    DocumentChunks result;
    const auto size = static_cast<int64_t>(request.text.size());
    while (result.next_byte < size) {
      const int64_t end = std::min<int64_t>(result.next_byte + request.chunk_tokens * bytes_per_token, size);
      if (end == size && request.goes_on) break;
      const std::string key =
          absl::StrCat("key-", std::string(Name(request.anchoring)), "-", end - result.next_byte);
      result.chunks.push_back({.begin_byte = result.next_byte,
                               .end_byte = end,
                               .num_tokens = 3,
                               .stored_bytes = 1000,
                               .key = key,
                               .stored = stored.contains(key)});
      result.next_byte = end;
    }
    result.next_byte += next_byte_offset;
    return result;
  }

  absl::Status PutChunks(const PutChunksRequest& request,
                         const std::function<void(const PutChunkProgress&)>& on_progress) override {
    if (on_put) KVBLEND_RETURN_IF_ERROR(on_put(request));
    absl::MutexLock lock(&mutex);
    put.push_back(request);
    log.push_back("put");
    if (!put_status.ok()) return put_status;
    const auto total = static_cast<int32_t>(request.chunks.size());
    for (int32_t i = 0; i < total; ++i) {
      const std::string key =
          absl::StrCat("key-", std::string(Name(request.anchoring)), "-", request.chunks[i].size());
      const bool present = !stored.emplace(key, ChunkInfo{.key = key, .num_tokens = 3}).second;
      on_progress({.index = i,
                   .done = i + 1,
                   .total = total,
                   .key = key,
                   .num_tokens = 3,
                   .already_present = present});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(const PrefetchChunksRequest& request) override {
    prefetched.push_back(request);
    log.push_back("prefetch");
    std::vector<PrefetchedChunk> chunks;
    for (const std::string& text : request.chunks) {
      const std::string key = absl::StrCat("key-", std::string(Name(request.anchoring)), "-", text.size());
      const auto found = stored.find(key);
      chunks.push_back(
          {.key = key, .tier = found == stored.end() ? Tier::kNone : found->second.tier, .num_tokens = 3});
    }
    return chunks;
  }

  absl::StatusOr<StatResult> StatChunks(const std::string&, absl::Span<const std::string> keys) override {
    StatResult result;
    for (const std::string& key : keys) {
      if (const auto it = stored.find(key); it != stored.end()) {
        result.chunks.push_back(it->second);
      } else {
        result.missing_keys.push_back(key);
      }
    }
    return result;
  }

  absl::StatusOr<ChunkPage> ListChunks(const std::string&, int32_t, const std::string& page_token) override {
    ChunkPage page;
    auto it = page_token.empty() ? stored.begin() : stored.lower_bound(page_token);
    while (it != stored.end() && page.chunks.size() < page_size) page.chunks.push_back((it++)->second);
    if (it != stored.end()) page.next_page_token = it->first;
    return page;
  }

  absl::StatusOr<ChangeResult> DeleteChunks(const std::string&, absl::Span<const std::string> keys) override {
    deleted.emplace_back(keys.begin(), keys.end());
    log.push_back("delete");
    ChangeResult result;
    for (const std::string& key : keys) {
      if (stored.erase(key) > 0) {
        ++result.changed;
      } else {
        result.missing_keys.push_back(key);
      }
    }
    return result;
  }

  absl::StatusOr<ChangeResult> DeleteAllChunks(const std::string&) override {
    const auto count = static_cast<int64_t>(stored.size());
    stored.clear();
    return ChangeResult{.changed = count, .missing_keys = {}};
  }

  absl::StatusOr<ChangeResult> PinChunks(const std::string&, absl::Span<const std::string> keys,
                                         bool pinned) override {
    ChangeResult result;
    for (const std::string& key : keys) {
      if (const auto it = stored.find(key); it != stored.end()) {
        it->second.pinned = pinned;
        ++result.changed;
      } else {
        result.missing_keys.push_back(key);
      }
    }
    return result;
  }

  absl::StatusOr<Info> GetInfo() override {
    Info info = info_answer;
    info.engine.version = "1.2.3";
    info.engine.model_name = "fake";
    info.engine.device = "cuda:1";
    info.engine.device_name = "GPU";
    info.engine.device_reason = "GPU with compute capability 9.0";
    info.engine.backend = "none";
    info.device_memory = {.used_bytes = 3 << 20, .total_bytes = 4 << 20};
    info.pages_used = 5;
    info.pages_total = 6;
    return info;
  }

  absl::Status CheckHealth() override { return health; }

  static PromptReport Report(const Prompt& prompt, const BlendOptions& blend) {
    PromptReport report;
    report.reuse = blend.reuse;
    report.policy = blend.policy;
    report.anchoring = blend.anchoring;
    report.prompt_tokens = 100;
    for (size_t i = 0; i < prompt.chunks.size(); ++i) {
      report.chunks.push_back({.index = static_cast<int32_t>(i),
                               .source = ChunkSource::kBlended,
                               .tier = Tier::kHostMemory,
                               .num_tokens = 10,
                               .recomputed_tokens = 2,
                               .key = absl::StrCat("k", i)});
    }
    return report;
  }
};

}  // namespace kvblend::server::cli
