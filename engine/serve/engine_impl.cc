#include "engine/serve/engine_impl.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "engine/api/option_table.h"
#include "engine/runtime/cost_measurement.h"
#include "engine/serve/admission/least_work.h"
#include "engine/serve/admission/prompt_slice.h"
#include "engine/serve/generate_task.h"
#include "engine/serve/open_tiers.h"
#include "engine/serve/put_chunks_task.h"
#include "engine/serve/score_task.h"
#include "engine/serve/self_check.h"

namespace kvblend {
namespace {

EngineInfo MakeInfo(const ModelRuntime& runtime, const EngineOptions& options, double self_check_max_error) {
  const model::ModelConfig& config = runtime.config;
  const store::KvFormat& format = runtime.key_space.format;
  EngineInfo info;
  info.version = KVBLEND_VERSION;  // set by CMake from the project's version
  info.model_name = config.name;
  info.model_architecture = std::string(config.architecture->name);
  info.model_fingerprint = ToHex(runtime.key_space.model_fingerprint);
  info.device = runtime.device;
  info.device_name = runtime.backend->device_name();
  info.device_reason = runtime.device_reason;
  info.backend = runtime.backend->Describe();
  info.chat_format = runtime.chat_template->format_name();
  info.told_date = runtime.told_date;
  info.kv_dtype = kernels::Name(runtime.page_pool->dtype());
  info.chunk_format = kernels::Name(format.encoding);
  info.chunk_bytes_per_token = format.BytesPerToken();
  info.num_layers = config.num_layers;
  info.num_heads = config.num_heads;
  info.num_kv_heads = config.num_kv_heads;
  info.head_dim = config.head_dim;
  info.hidden_dim = config.hidden_dim;
  info.vocab_size = config.vocab_size;
  info.max_context_tokens = runtime.max_context_tokens;
  info.page_size = runtime.page_pool->page_size();
  info.max_batch_size = options.max_batch_size;
  info.max_batch_tokens = runtime.max_batch_tokens;
  info.self_check_max_error = self_check_max_error;
  return info;
}

// Both rooms are of pages: those of a decode batch, and those of one context for all other work.
constexpr int32_t kRoomOfAnswers = 0, kRoomOfWork = 1;

std::unique_ptr<CorrectionLearning> MakeLearning(const EngineOptions& options, ModelRuntime& runtime,
                                                 store::ReplicaBoard* board) {
  if (options.correction == "none" || options.learn_correction == Name(LearningState::kOff)) return nullptr;
  return std::make_unique<CorrectionLearning>(
      runtime,
      CorrectionLearning::Options{
          .frozen = options.learn_correction == Name(LearningState::kFrozen),
          .folder = options.chunk_disk_path,
          .max_bytes = options.correction_learning_bytes,
          .waiting_bytes = std::max(CorrectionLearning::kMinWaitingBytes, options.chunk_store_bytes / 16),
          .board = options.share_correction ? board : nullptr,
          .share_interval = absl::Seconds(options.share_correction_seconds)});
}

}  // namespace

/// Held by the client, who may cancel, and by the task's jobs, which tell it which of them is queued.
class EngineImpl::Handle final : public RequestHandle {
 public:
  Handle(std::shared_ptr<Task> task, schedule::Scheduler* scheduler)
      : task_(std::move(task)), scheduler_(scheduler) {}

  void Cancel() override {
    task_->cancellation().Cancel();
    schedule::JobId job;
    {
      absl::MutexLock lock(&mutex_);
      job = job_;
    }
    // Still queued: it ends here. Running: it ends at the next layer.
    scheduler_->Abandon(job, absl::CancelledError("the request was cancelled by the client"));
  }

  void SetJob(schedule::JobId job) {
    absl::MutexLock lock(&mutex_);
    // Who began the first turn may come here after who began the next one. Later jobs have greater numbers.
    job_ = std::max(job_, job);
  }

 private:
  const std::shared_ptr<Task> task_;
  schedule::Scheduler* const scheduler_;  // outlives every request
  absl::Mutex mutex_;
  schedule::JobId job_ ABSL_GUARDED_BY(mutex_) = {};  // changes with every turn of a PutChunks request
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       const LoadObserver& on_load) {
  KVBLEND_RETURN_IF_ERROR(CheckEngineOptions(options));
  // Before the model is loaded: another server on the same folder shows at once.
  KVBLEND_ASSIGN_OR_RETURN(auto lower_tiers, OpenLowerTiers(options));
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(options, on_load));
  for (const auto& tier : lower_tiers) {
    tier->SetUsable({.model_fingerprint = runtime->key_space.model_fingerprint,
                     .format = runtime->key_space.format,
                     .max_kv_bytes = options.chunk_store_bytes - store::ChunkStore::kEntryOverheadBytes});
  }
  KVBLEND_ASSIGN_OR_RETURN(
      std::unique_ptr<store::ChunkStore> chunk_store,
      store::ChunkStore::Create({.byte_budget = options.chunk_store_bytes,
                                 .memory = runtime->host_memory.get(),
                                 .namespace_quotas = options.namespace_quotas,
                                 .lookup_budget = absl::Seconds(options.chunk_redis.budget_seconds)},
                                std::move(lower_tiers)));
  double self_check_max_error = -1;
  if (options.self_check) {
    KVBLEND_ASSIGN_OR_RETURN(self_check_max_error, RunSelfCheck(*runtime));
  }
  KVBLEND_ASSIGN_OR_RETURN(const blend::PrefillMeasurements costs, MeasureCosts(*runtime));
  return std::make_unique<EngineImpl>(options, std::move(runtime), std::move(chunk_store),
                                      self_check_max_error, costs);
}

EngineImpl::EngineImpl(const EngineOptions& options, std::unique_ptr<ModelRuntime> runtime,
                       std::unique_ptr<store::ChunkStore> chunk_store, double self_check_max_error,
                       const blend::PrefillMeasurements& costs)
    : options_(options),
      runtime_(std::move(runtime)),
      chunk_store_(std::move(chunk_store)),
      validator_(options_, *runtime_),
      default_split_(
          ParseName<PromptSplit>("split-prompts", options_.split_prompts).value_or(PromptSplit::kNone)),
      info_(MakeInfo(*runtime_, options_, self_check_max_error)),
      learning_(MakeLearning(options_, *runtime_, chunk_store_->replica_board())),
      runner_(*runtime_, *chunk_store_,
              {.load_pipeline_depth = options_.load_pipeline_depth,
               .ratio = options_.ratio,
               .fresh_rows = learning_ != nullptr ? learning_->fresh_rows() : blend::FreshRowOptions{},
               .max_kept_pages =
                   static_cast<int64_t>(options_.keep_conversations * runtime_->page_pool->num_pages()),
               .share_prefixes = options_.share_prefixes}),
      decode_batch_(runner_, *runtime_->page_pool,
                    {.max_sequences = options_.max_batch_size,
                     .max_pages = runtime_->page_pool->num_pages() -
                                  runtime_->page_pool->PagesForTokens(runtime_->max_context_tokens),
                     .max_draft_tokens = options_.max_draft_tokens,
                     .max_draft_rows = static_cast<int32_t>(std::min<int64_t>(
                         kMaxBatchSize, runtime_->weights.max_rows_together(runtime_->config)))}),
      prefetcher_(options_.prefetch_queued && chunk_store_->has_lower_tiers()
                      ? std::make_unique<Prefetcher>(*chunk_store_, options_.chunk_store_bytes)
                      : nullptr),
      scheduler_({.max_queued = options_.max_queued_requests,
                  .max_queued_tokens = options_.max_queued_tokens,
                  .max_in_progress = {options_.max_prefills, 1, 1},
                  .ongoing = [this] { return StepDecoding(); },
                  .slice = [this](schedule::Lane lane) { return SliceOf(lane); },
                  .idle = options_.refine_idle
                              ? std::function<bool()>([this] { return runner_.RefineKept(); })
                              : nullptr}) {
  runner_.loading_controller().Observe(costs);
}

EngineImpl::~EngineImpl() { Drain(absl::InfinitePast()).IgnoreError(); }

absl::StatusOr<std::shared_ptr<RequestHandle>> EngineImpl::Generate(
    GenerateRequest request, std::shared_ptr<GenerateObserver> observer) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  KVBLEND_ASSIGN_OR_RETURN(
      prompt::PromptLayout layout,
      SplitAndLayout(request.caller, request.blend, /*reserved_tokens=*/1, request.prompt));
  const BlendOptions blend = request.blend;
  auto task =
      std::make_shared<GenerateTask>(std::move(request), std::move(layout), *runtime_, std::move(observer));
  SetDemand(*task, task->layout(), blend);
  PrefetchFor(*task, task->layout(), blend);
  return Submit(std::move(task), schedule::Lane::kInteractive);
}

absl::StatusOr<std::shared_ptr<RequestHandle>> EngineImpl::Score(ScoreRequest request,
                                                                 std::shared_ptr<ScoreObserver> observer) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> continuation, validator_.Continuation(request));
  KVBLEND_ASSIGN_OR_RETURN(prompt::PromptLayout layout,
                           SplitAndLayout(request.caller, request.blend,
                                          static_cast<int32_t>(continuation.size()), request.prompt));
  const BlendOptions blend = request.blend;
  auto task = std::make_shared<ScoreTask>(std::move(request), std::move(layout), std::move(continuation),
                                          *runtime_, std::move(observer));
  SetDemand(*task, task->layout(), blend);
  PrefetchFor(*task, task->layout(), blend);
  return Submit(std::move(task), schedule::Lane::kInteractive);
}

std::optional<double> EngineImpl::SecondsPerToken(int32_t prompt_tokens) const {
  // Without the tiers' rates: only computing matters here.
  const std::optional<blend::LoadingCosts> costs = runner_.loading_controller().Costs({});
  if (!costs) return std::nullopt;
  const blend::PromptShape prompt{.num_layers = runtime_->config.num_layers,
                                  .spans = {{.begin = 0, .end = prompt_tokens}}};
  return blend::SecondsPerToken(costs->forward, prompt);
}

void EngineImpl::SetDemand(Task& task, const prompt::PromptLayout& layout, const BlendOptions& blend) const {
  const auto tokens = static_cast<int32_t>(layout.token_ids.size());
  const double seconds = SecondsPerToken(tokens).value_or(0);
  const auto least = [&](bool finds_pages) {
    return seconds * LeastComputedTokens(layout, blend, options_.ratio, finds_pages);
  };
  task.SetDemand(least(options_.share_prefixes), least(/*finds_pages=*/false), tokens);
}

void EngineImpl::PrefetchFor(Task& task, const prompt::PromptLayout& layout, const BlendOptions& blend) {
  if (prefetcher_ == nullptr) return;
  // A prompt that need not wait looks its chunks up at once.
  if (scheduler_.running() == 0 && !scheduler_.has_ongoing() &&
      scheduler_.waiting(schedule::Lane::kInteractive) == 0)
    return;
  task.HoldPrefetch(
      prefetcher_->Start(blend::KeysOf(layout, blend, runtime_->key_space, task.caller().tenant_namespace)));
}

absl::StatusOr<std::shared_ptr<RequestHandle>> EngineImpl::PutChunks(
    PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) {
  KVBLEND_RETURN_IF_ERROR(validator_.Check(request));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> anchor_ids,
                           validator_.AnchorTokens(request.anchoring, request.system_text, request.lead_in));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> chunk_ids,
                           validator_.ChunkTokens(request, anchor_ids.size()));
  for (const std::string& chunk : request.chunks) known_texts_.Add(request.caller.tenant_namespace, chunk);
  int64_t tokens = 0;
  for (const std::vector<int32_t>& ids : chunk_ids) tokens += static_cast<int64_t>(ids.size());
  const auto num_chunks = static_cast<int64_t>(chunk_ids.size());
  auto task = std::make_shared<PutChunksTask>(
      std::move(request), std::move(anchor_ids), std::move(chunk_ids),
      SecondsPerToken(static_cast<int32_t>(tokens / num_chunks)).value_or(0), std::move(observer));
  task->SetDemand(/*least_seconds=*/0, /*queue_seconds=*/0, tokens);  // all of it may be there already
  return Submit(std::move(task), schedule::Lane::kBulk);
}

absl::StatusOr<std::shared_ptr<RequestHandle>> EngineImpl::Submit(std::shared_ptr<Task> task,
                                                                  schedule::Lane lane) {
  auto handle = std::make_shared<Handle>(task, &scheduler_);
  KVBLEND_RETURN_IF_ERROR(Enqueue(task, lane, handle, /*continues=*/false));
  return handle;
}

absl::Status EngineImpl::Enqueue(const std::shared_ptr<Task>& task, schedule::Lane lane,
                                 const std::shared_ptr<Handle>& handle, bool continues) {
  schedule::Job job = JobOf(task, lane, handle);
  job.deadline = task->cancellation().deadline();
  job.continues = continues;
  if (continues) job.tokens = 0;  // tokens count only until the first turn
  KVBLEND_ASSIGN_OR_RETURN(const schedule::JobId id, scheduler_.Submit(std::move(job)));
  handle->SetJob(id);
  // A Cancel that came before SetJob, a put's during its last turn, knew no job to take out of the queue.
  if (absl::Status s = task->cancellation().Check(); !s.ok()) scheduler_.Abandon(id, std::move(s));
  return absl::OkStatus();
}

schedule::Job EngineImpl::JobOf(const std::shared_ptr<Task>& task, schedule::Lane lane,
                                const std::shared_ptr<Handle>& handle) {
  schedule::Job job;
  job.fairness_key = task->caller().fairness_key;
  job.lane = lane;
  job.room = task->max_decoding_tokens() > 0 ? kRoomOfAnswers : kRoomOfWork;
  job.priority = PriorityOf(task->caller());
  job.predicted_seconds = task->least_seconds();
  job.queue_seconds = task->queue_seconds();
  job.continued_seconds = task->continued_seconds();
  job.tokens = task->tokens();
  job.has_room = [this, task] { return HasRoomFor(*task); };
  job.seconds_left = [task] {
    // A cancelled request gives back at once what it holds.
    return task->cancellation().Check().ok() ? task->predicted_seconds_left()
                                             : -std::numeric_limits<double>::infinity();
  };
  job.advance = [this, task, lane, handle, begun = false]() mutable {
    if (!std::exchange(begun, true)) TakeRoom(task, lane);
    if (task->Advance(runner_)) {
      // Slices measure work that is done: a decoding step would have to wait for all that is only enqueued.
      if (!decode_batch_.empty()) runtime_->backend->Synchronize(*runtime_->stream).IgnoreError();
      return true;
    }
    EndTurn(task, lane, handle);
    return false;
  };
  job.abandon = [task](const absl::Status& status) { task->Abandon(status); };
  return job;
}

// No prompt is prefilled before its answer has room, as far as can be foreseen: it would keep its pages, and
// the lanes behind it would wait.
bool EngineImpl::HasRoomFor(const Task& task) const {
  if (task.max_decoding_tokens() > 0) return decode_batch_.HasRoomFor(task);
  const kv::PagePool& pool = *runtime_->page_pool;
  return working_pages_ == 0 || working_pages_ + pool.PagesForTokens(task.max_working_tokens()) <=
                                    pool.PagesForTokens(runtime_->max_context_tokens);
}

void EngineImpl::TakeRoom(const std::shared_ptr<Task>& task, schedule::Lane lane) {
  {
    absl::MutexLock lock(&mutex_);
    running_.emplace(task, lane);
    if (shut_down_) task->cancellation().ShutDown();
  }
  if (task->max_decoding_tokens() > 0) {
    decode_batch_.Reserve(*task);
    return;
  }
  const int64_t pages = runtime_->page_pool->PagesForTokens(task->max_working_tokens());
  pages_of_.emplace(task.get(), pages);
  working_pages_ += pages;
}

void EngineImpl::EndTurn(const std::shared_ptr<Task>& task, schedule::Lane lane,
                         const std::shared_ptr<Handle>& handle) {
  if (task->max_decoding_tokens() > 0) {
    if (task->decoding() == nullptr) {
      decode_batch_.Release(*task);
    } else {
      decode_batch_.Add(task);
      return;  // it retires when it has been decoded
    }
  } else {
    working_pages_ -= pages_of_.extract(task.get()).mapped();
  }
  // A task with more to do goes to the back of its queue, so that others get their turn.
  if (task->unfinished()) {
    if (absl::Status queued = Enqueue(task, lane, handle, /*continues=*/true); !queued.ok())
      task->Abandon(queued);
  }
  Retire(task);
}

absl::Duration EngineImpl::SliceOf(schedule::Lane lane) const {
  const double slice = PromptSliceSeconds(decode_batch_.step_seconds(), options_.itl_target_seconds);
  // Work that nobody waits for gets smaller slices.
  return absl::Seconds(lane == schedule::Lane::kInteractive ? slice : slice / 4);
}

bool EngineImpl::StepDecoding() {
  // Half of a slice, so that prompts have theirs as well.
  const absl::Duration resuming = SliceOf(schedule::Lane::kInteractive) / 2;
  const std::vector<std::shared_ptr<Task>> ended = decode_batch_.Step(resuming);
  for (const auto& [task, seconds] : decode_batch_.TakeSpent()) {
    scheduler_.Charge(schedule::Lane::kInteractive, PriorityOf(task->caller()), task->caller().fairness_key,
                      seconds);
  }
  for (const std::shared_ptr<Task>& task : ended) Retire(task);
  return !decode_batch_.empty();
}

void EngineImpl::Retire(const std::shared_ptr<Task>& task) {
  // In this order: if neither requests nor background work are seen, all missed chunks have been stored.
  StoreBehindResponse(task->caller(), task->TakeMissing());
  absl::MutexLock lock(&mutex_);
  running_.erase(task);
}

void EngineImpl::StoreBehindResponse(const Caller& caller, std::vector<blend::MissingEntry> missing) {
  for (blend::MissingEntry& entry : missing) {
    auto task = std::make_shared<StoreMissTask>(caller.tenant_namespace, std::move(entry), background_counts_,
                                                learning_.get());
    schedule::Job job = JobOf(task, schedule::Lane::kBackground, /*handle=*/nullptr);
    job.fairness_key = caller.fairness_key;
    job.priority = PriorityOf(caller);
    // A full background queue costs a later miss, nothing else.
    const absl::Status submitted = scheduler_.Submit(std::move(job)).status();
    if (!submitted.ok()) task->Abandon(submitted);
  }
}

absl::StatusOr<CorrectionStats> EngineImpl::UpdateCorrection(CorrectionAction action) {
  if (action == CorrectionAction::kShow) return Stats().correction;
  if (learning_ != nullptr) return learning_->Update(action);
  return absl::FailedPreconditionError(absl::StrCat("nothing is learned while serving (learn-correction is ",
                                                    options_.learn_correction, ", correction is ",
                                                    options_.correction, "); allowed: show"));
}

absl::StatusOr<int32_t> EngineImpl::CountTokens(std::string_view text) {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                           prompt::ChunkTokens(text, "text", *runtime_->tokenizer));
  return static_cast<int32_t>(tokens.size());
}

EngineStats EngineImpl::Stats() const {
  EngineStats stats;
  stats.requests_waiting =
      scheduler_.waiting(schedule::Lane::kInteractive) + scheduler_.waiting(schedule::Lane::kBulk);
  stats.tokens_waiting = scheduler_.waiting_tokens();
  stats.predicted_wait_seconds = absl::ToDoubleSeconds(scheduler_.predicted_wait());
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [task, lane] : running_) {
      if (lane != schedule::Lane::kBackground) ++stats.requests_running;
    }
  }
  // After the requests, for the reason given in Retire.
  stats.background_unfinished = scheduler_.unfinished(schedule::Lane::kBackground);
  const DecodeBatch::Counts& decoding = decode_batch_.counts();
  stats.sequences_decoding = decoding.sequences.load(std::memory_order_relaxed);
  stats.decode_steps = decoding.steps.load(std::memory_order_relaxed);
  stats.decoded_tokens = decoding.tokens.load(std::memory_order_relaxed);
  stats.preemptions = decoding.preemptions.load(std::memory_order_relaxed);
  const schedule::Scheduler::Slices slices = scheduler_.slices();
  stats.prompt_slices = slices.count;
  stats.prompt_slice_seconds = absl::ToDoubleSeconds(slices.time);
  stats.drafted_tokens = decoding.drafted.load(std::memory_order_relaxed);
  stats.accepted_draft_tokens = decoding.accepted.load(std::memory_order_relaxed);
  const KeptSequences::Counts& kept = runner_.kept_counts();
  stats.kept_conversations = kept.sequences.load(std::memory_order_relaxed);
  stats.pages_kept = runtime_->page_pool->num_idle();
  stats.pages_shared = runtime_->page_pool->num_shared();
  stats.refined_tokens = runner_.refined_tokens();
  stats.pages_dropped = runner_.dropped_pages();
  stats.prompt_chunks = runner_.chunk_counts().looked_up.load(std::memory_order_relaxed);
  stats.prompt_chunks_found = runner_.chunk_counts().found.load(std::memory_order_relaxed);
  stats.kept_conversations_taken = kept.taken.load(std::memory_order_relaxed);
  stats.kept_conversations_evicted = kept.evicted.load(std::memory_order_relaxed);
  stats.pages_used = std::max(0, runtime_->page_pool->num_used() - stats.pages_kept);
  stats.pages_total = runtime_->page_pool->num_pages();
  stats.page_bytes = runtime_->page_pool->page_bytes();
  if (const std::optional<kernels::DeviceMemory> memory = runtime_->backend->device_memory()) {
    stats.device_memory = {.used_bytes = memory->used_bytes, .total_bytes = memory->total_bytes};
  }
  stats.background_chunks_stored = background_counts_->stored.load(std::memory_order_relaxed);
  stats.background_chunks_failed = background_counts_->failed();
  const std::map<Tier, store::ReadRate> rates = chunk_store_->read_meter().Rates();
  for (const auto& [tier, rate] : rates) {
    stats.loading.read_bytes_per_second.emplace(tier, rate.bytes_per_second);
  }
  if (const std::optional<blend::LoadingCosts> costs = runner_.loading_controller().Costs(rates)) {
    stats.loading.compute_seconds_per_token = SecondsPerToken(4096).value_or(0);
    stats.loading.place_seconds_per_token = runtime_->config.num_layers * costs->place_seconds;
  }
  if (learning_ != nullptr) {
    stats.correction = learning_->Stats();
  } else if (const auto correction = runtime_->correction.Get()) {
    stats.correction.version = correction->version;
  }
  stats.store = chunk_store_->Stats();
  stats.tiers = chunk_store_->LowerTierStats();
  return stats;
}

absl::Status EngineImpl::Drain(absl::Time deadline) {
  absl::Status drained = scheduler_.Drain(ToSteady(deadline));
  if (drained.ok()) {
    // Learning was nobody's request, so what is not learned by the deadline is no error.
    if (learning_ != nullptr) learning_->Flush(deadline).IgnoreError();
    absl::Status flushed = chunk_store_->FlushWrites(deadline);
    if (!flushed.ok()) chunk_store_->DropWrites();  // else the store's end would wait for them
    return flushed;
  }
  const int64_t jobs = scheduler_.running();
  {
    absl::MutexLock lock(&mutex_);
    shut_down_ = true;
    for (const auto& [task, lane] : running_) task->cancellation().ShutDown();
    // Answers that are being written, or wait for pages to go on, are no jobs any more.
    const int64_t answers = static_cast<int64_t>(running_.size()) - jobs;
    drained =
        absl::Status(drained.code(),
                     absl::StrCat(drained.message(), "; answers cut short: ", std::max(answers, int64_t{0})));
  }
  scheduler_.Drain(absl::InfiniteFuture()).IgnoreError();  // what runs ends within a layer or a token
  chunk_store_->DropWrites();
  return drained;
}

}  // namespace kvblend
