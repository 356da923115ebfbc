// The engine behind engine.h: validates and tokenizes on the caller's thread, queues, runs on one engine
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/engine.h"
#include "engine/prompt/split/known_texts.h"
#include "engine/runtime/model_runtime.h"
#include "engine/schedule/scheduler.h"
#include "engine/serve/correction_learning.h"
#include "engine/serve/prefetcher.h"
#include "engine/serve/request_validation.h"
#include "engine/serve/sequences/decode_batch.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/store_miss_task.h"
#include "engine/serve/task.h"
#include "engine/store/chunk_store.h"

namespace kvblend {

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRuntime> runtime,
             std::unique_ptr<store::ChunkStore> chunk_store, double self_check_max_error,
             const blend::PrefillMeasurements& costs);
  ~EngineImpl() override;

  absl::StatusOr<std::shared_ptr<RequestHandle>> Generate(
      GenerateRequest request, std::shared_ptr<GenerateObserver> observer) override;
  absl::StatusOr<std::shared_ptr<RequestHandle>> Score(ScoreRequest request,
                                                       std::shared_ptr<ScoreObserver> observer) override;
  absl::StatusOr<std::shared_ptr<RequestHandle>> PutChunks(
      PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) override;
  absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(PrefetchChunksRequest request) override;
  ChunkCatalog& chunks() override { return *chunk_store_; }
  absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) override;
  absl::StatusOr<int32_t> CountTokens(std::string_view text) override;
  absl::StatusOr<CorrectionStats> UpdateCorrection(CorrectionAction action) override;
  const EngineInfo& info() const override { return info_; }
  EngineStats Stats() const override;
  absl::Status Drain(absl::Time deadline) override;

 private:
  class Handle;

  absl::StatusOr<std::shared_ptr<RequestHandle>> Submit(std::shared_ptr<Task> task, schedule::Lane lane);
  absl::Status Enqueue(const std::shared_ptr<Task>& task, schedule::Lane lane,
                       const std::shared_ptr<Handle>& handle, bool continues);
  schedule::Job JobOf(const std::shared_ptr<Task>& task, schedule::Lane lane,
                      const std::shared_ptr<Handle>& handle);
  // On the engine thread, at the beginning and at the end of a task's turn.
  bool HasRoomFor(const Task& task) const;
  void TakeRoom(const std::shared_ptr<Task>& task, schedule::Lane lane);
  void EndTurn(const std::shared_ptr<Task>& task, schedule::Lane lane, const std::shared_ptr<Handle>& handle);
  /// For how long prompts and chunks are worked on between two steps of decoding.
  absl::Duration SliceOf(schedule::Lane lane) const;
  /// Carries all decoding tasks on by a token. Returns whether any go on.
  bool StepDecoding();
  /// The task is over.
  void Retire(const std::shared_ptr<Task>& task);
  /// What one more computed token of a prompt of so many costs; nothing until that has been measured.
  /// Thread-safe.
  std::optional<double> SecondsPerToken(int32_t prompt_tokens) const;
  /// Cuts the prompt where that is asked for, and lays it out. What it has of passages is known from then on.
  absl::StatusOr<prompt::PromptLayout> SplitAndLayout(const Caller& caller, const BlendOptions& blend,
                                                      int32_t reserved_tokens, Prompt& prompt);
  void SetDemand(Task& task, const prompt::PromptLayout& layout, const BlendOptions& blend) const;
  void PrefetchFor(Task& task, const prompt::PromptLayout& layout, const BlendOptions& blend);
  void StoreBehindResponse(const Caller& caller, std::vector<blend::MissingEntry> missing);

  const EngineOptions options_;
  const std::unique_ptr<ModelRuntime> runtime_;
  const std::unique_ptr<store::ChunkStore> chunk_store_;
  const RequestValidator validator_;
  const PromptSplit default_split_;
  prompt::KnownTexts known_texts_;  // of all namespaces; nothing of it outlives the process
  const EngineInfo info_;
  const std::unique_ptr<CorrectionLearning> learning_;  // null: off
  // For the engine thread only.
  PromptRunner runner_;
  DecodeBatch decode_batch_;
  int64_t working_pages_ = 0;  // set aside for tasks in progress that nothing is decoded of
  absl::flat_hash_map<const Task*, int64_t> pages_of_;  // theirs

  const std::unique_ptr<Prefetcher> prefetcher_;  // null: there is nothing to prefetch from, or it is off
  const std::shared_ptr<BackgroundCounts> background_counts_ = std::make_shared<BackgroundCounts>();

  mutable absl::Mutex mutex_;  // never held while calling out
  // Those being decoded too.
  absl::flat_hash_map<std::shared_ptr<Task>, schedule::Lane> running_ ABSL_GUARDED_BY(mutex_);
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;  // set when a drain's deadline has passed

  schedule::Scheduler scheduler_;  // last: its thread stops before anything above goes
};

}  // namespace kvblend
