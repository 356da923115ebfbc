#include "tests/support/fake_engine.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend::testing {
namespace {

constexpr store::KvFormat kFormat = {kernels::KvEncoding::kF32, /*num_layers=*/2, /*num_kv_heads=*/1,
                                     /*head_dim=*/4};

}  // namespace

FakeEngine::FakeEngine(std::vector<std::unique_ptr<store::LowerTier>> lower)
    : chunk_store_(*store::ChunkStore::Create({.byte_budget = 1 << 20, .pinned_byte_limit = 1 << 16},
                                              std::move(lower))) {
  info_.version = "1.2.3";
  info_.model_name = "fake";
  info_.model_architecture = "llama";
  info_.model_fingerprint = "00ff";
  info_.device = "cpu";
  info_.device_name = "CPU";
  info_.device_reason = "as asked for";
  info_.backend = "none";
  info_.kv_dtype = "f32";
  info_.chunk_format = "f32";
  info_.chunk_bytes_per_token = kFormat.BytesPerToken();
  info_.num_layers = kFormat.num_layers;
  info_.num_heads = 2;
  info_.num_kv_heads = kFormat.num_kv_heads;
  info_.head_dim = kFormat.head_dim;
  info_.hidden_dim = 8;
  info_.vocab_size = 100;
  info_.max_context_tokens = 2048;
  info_.page_size = 64;
  info_.self_check_max_error = 0.001;
}

template <typename Call, typename Request, typename Observer>
absl::StatusOr<std::shared_ptr<RequestHandle>> FakeEngine::Accept(Waiting<Call>* waiting, Request request,
                                                                  std::shared_ptr<Observer> observer) {
  absl::MutexLock lock(&mutex_);
  if (!refusal_.ok()) return refusal_;
  auto call = std::make_shared<Call>(std::move(request), std::move(observer));
  waiting->push_back(call);
  accepted_.push_back(call);
  return call;
}

absl::StatusOr<std::shared_ptr<RequestHandle>> FakeEngine::Generate(
    GenerateRequest request, std::shared_ptr<GenerateObserver> observer) {
  return Accept(&generates_, std::move(request), std::move(observer));
}

absl::StatusOr<std::shared_ptr<RequestHandle>> FakeEngine::Score(ScoreRequest request,
                                                                 std::shared_ptr<ScoreObserver> observer) {
  return Accept(&scores_, std::move(request), std::move(observer));
}

absl::StatusOr<std::shared_ptr<RequestHandle>> FakeEngine::PutChunks(
    PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) {
  return Accept(&puts_, std::move(request), std::move(observer));
}

absl::StatusOr<std::vector<PrefetchedChunk>> FakeEngine::PrefetchChunks(PrefetchChunksRequest request) {
  std::vector<PrefetchedChunk> chunks;
  for (const std::string& text : request.chunks) {
    PrefetchedChunk& chunk = chunks.emplace_back();
    chunk.key.assign(64, 'b');
    chunk.tier = Tier::kDisk;
    chunk.num_tokens = static_cast<int32_t>(text.size());
  }
  return chunks;
}

absl::StatusOr<DocumentChunks> FakeEngine::SplitDocument(const SplitDocumentRequest& request) {
  DocumentChunks result;
  const auto size = static_cast<int64_t>(request.text.size());
  while (result.next_byte < size) {
    const int64_t end = std::min<int64_t>(result.next_byte + request.chunk_tokens, size);
    if (end == size && request.goes_on) break;
    result.chunks.push_back({.begin_byte = result.next_byte,
                             .end_byte = end,
                             .num_tokens = static_cast<int32_t>(end - result.next_byte),
                             .stored_bytes = 100,
                             .key = *ChunkKey::FromHex(std::string(64, 'a')),
                             .stored = result.next_byte == 0});
    result.next_byte = end;
  }
  return result;
}

absl::StatusOr<int32_t> FakeEngine::CountTokens(std::string_view text) {
  return static_cast<int32_t>(text.size());
}

absl::StatusOr<CorrectionStats> FakeEngine::UpdateCorrection(CorrectionAction action) {
  absl::MutexLock lock(&mutex_);
  if (action == CorrectionAction::kFreeze) correction_.learning = LearningState::kFrozen;
  if (action == CorrectionAction::kLearn) correction_.learning = LearningState::kOn;
  if (action == CorrectionAction::kReset) correction_.version.clear();
  return correction_;
}

EngineStats FakeEngine::Stats() const {
  EngineStats stats;
  stats.requests_waiting = 3;
  stats.requests_running = 1;
  stats.background_unfinished = 2;
  stats.pages_used = 5;
  stats.pages_total = 7;
  stats.background_chunks_stored = 11;
  stats.background_chunks_failed = 13;
  stats.store = chunk_store_->Stats();
  return stats;
}

absl::Status FakeEngine::Drain(absl::Time deadline) {
  RefuseWith(absl::UnavailableError("draining"));
  draining_.Notify();
  std::vector<std::shared_ptr<FakeHandle>> accepted;
  {
    absl::MutexLock lock(&mutex_);
    accepted = accepted_;
  }
  bool in_time = true;
  for (const auto& call : accepted) {
    if (call->finished.WaitForNotificationWithTimeout(deadline - absl::Now())) continue;
    in_time = false;
    call->Cancel();
    call->finished.WaitForNotification();
  }
  return in_time ? absl::OkStatus() : absl::DeadlineExceededError("cancelled what was left");
}

void FakeEngine::RefuseWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

ChunkKey FakeEngine::StoreChunk(std::string_view tenant_namespace, int32_t seed, int32_t num_tokens,
                                const std::string& label) {
  const std::vector<int32_t> tokens(num_tokens, seed);
  store::ChunkIdentity identity;
  identity.format = kFormat;
  identity.tenant_namespace = tenant_namespace;
  identity.token_ids = tokens;
  const store::ChunkAddress address = store::AddressOf(identity);
  auto kv = *store::ChunkKv::Allocate(kFormat, num_tokens);
  const auto handle =
      chunk_store_->Insert(address, std::move(kv), {.compute_cost_seconds = 0.5, .label = label});
  return handle.ok() ? address.key : ChunkKey();
}

}  // namespace kvblend::testing
