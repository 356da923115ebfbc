#include "engine/serve/sequences/chunk_storing.h"

#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "engine/blend/acquire_layer.h"

namespace kvblend {

ChunkStoring::ChunkStoring(const Engine& engine, std::string_view tenant_namespace,
                           absl::Span<const int32_t> anchor_ids, absl::Span<const int32_t> token_ids,
                           const StoreEntryOptions& options)
    : engine_(engine),
      tenant_namespace_(tenant_namespace),
      anchor_ids_(anchor_ids),
      token_ids_(token_ids),
      options_(options),
      address_(blend::AddressIn(engine.runtime.key_space, tenant_namespace, store::HashTokens(anchor_ids),
                                token_ids)) {
  stored_.key = address_.key;
  stored_.num_tokens = static_cast<int32_t>(token_ids.size());
}

ChunkStoring::~ChunkStoring() {
  const auto found = engine_.in_progress.find(address_.key);
  if (found != engine_.in_progress.end() && found->second == this) engine_.in_progress.erase(found);
}

absl::StatusOr<bool> ChunkStoring::Step(blend::KeepGoing keep_going) {
  KVBLEND_RETURN_IF_ERROR(failed_);
  const absl::StatusOr<bool> done = RunStage(keep_going);
  if (done.ok() && *done) stage_ = Stage::kDone;
  return done;
}

absl::StatusOr<bool> ChunkStoring::RunStage(blend::KeepGoing keep_going) {
  switch (stage_) {
    case Stage::kLookUp:
      KVBLEND_RETURN_IF_ERROR(LookUp());
      return false;
    case Stage::kArrive:
      return AwaitLayer(keep_going);
    case Stage::kJoin:
      KVBLEND_RETURN_IF_ERROR(keep_going());
      Join(keep_going);
      return false;
    case Stage::kAnchor:
      KVBLEND_RETURN_IF_ERROR(StoreAnchor(keep_going));
      return false;
    case Stage::kCompute:
      return Compute(keep_going);
    case Stage::kDone:
      return true;
  }
  return absl::InternalError("a chunk is stored in no stage");
}

absl::Status ChunkStoring::LookUp() {
  KVBLEND_ASSIGN_OR_RETURN(store::ReserveResult reserved, engine_.chunk_store.LookupOrReserve(address_));
  if (auto* entry = std::get_if<store::ChunkHandle>(&reserved)) {
    stored_.entry = std::move(*entry);
    layer_ = 0;
    stage_ = Stage::kArrive;
    return absl::OkStatus();
  }
  if (auto* reservation = std::get_if<store::Reservation>(&reserved)) {
    reservation_.emplace(std::move(*reservation));
    engine_.in_progress[address_.key] = this;
  } else if (engine_.in_progress.contains(address_.key)) {
    stage_ = Stage::kJoin;
    return absl::OkStatus();
  }
  // Without a reservation, somebody has it who is not in in_progress, and is not waited for: equal keys have
  // equal KV, and Insert takes both.
  if (anchor_ids_.empty()) return BeginComputing();
  // The anchor is an entry of its own: prompts reuse it exactly, and the next chunk behind it starts from it.
  anchor_ = std::make_unique<ChunkStoring>(
      engine_, tenant_namespace_, absl::Span<const int32_t>(), anchor_ids_,
      StoreEntryOptions{.label = kAnchorLabel, .on_purpose = options_.on_purpose});
  stage_ = Stage::kAnchor;
  return absl::OkStatus();
}

// No cycle of waiting: chunks wait for their anchors, and anchors for nobody.
void ChunkStoring::Join(blend::KeepGoing keep_going) {
  const auto found = engine_.in_progress.find(address_.key);
  if (found == engine_.in_progress.end()) {
    stage_ = Stage::kLookUp;
    return;
  }
  ChunkStoring& owner = *found->second;
  bool goes_on = true;  // as it was said to the owner: asked again, it may be another answer
  const auto keeps_going = [&] {
    absl::Status status = keep_going();
    goes_on = goes_on && status.ok();
    return status;
  };
  const absl::StatusOr<bool> done = owner.Step(keeps_going);
  if (done.ok() && !*done) return;
  // A stored entry is found. The owner hears of an error at its next turn, unless it is this one's own.
  if (!done.ok() && goes_on) owner.failed_ = done.status();
  if (done.ok() || !owner.failed_.ok()) {
    engine_.in_progress.erase(address_.key);
    stage_ = Stage::kLookUp;
  }
}

// An entry counts as stored when it has been read: only that shows that it can be.
absl::StatusOr<bool> ChunkStoring::AwaitLayer(blend::KeepGoing keep_going) {
  KVBLEND_RETURN_IF_ERROR(keep_going());
  const absl::Status arrived =
      stored_.entry->AcquireLayer(layer_, absl::Now() + blend::kTurnPatience).status();
  if (absl::IsDeadlineExceeded(arrived)) return false;
  if (!arrived.ok() && stored_.entry->lost()) {
    stored_.entry.reset();
    stage_ = Stage::kLookUp;
    return false;
  }
  KVBLEND_RETURN_IF_ERROR(arrived);
  if (++layer_ < engine_.runtime.config.num_layers) return false;
  stored_.already_present = true;
  if (options_.pinned)
    KVBLEND_RETURN_IF_ERROR(engine_.chunk_store.PinBehind(tenant_namespace_, address_.key));
  return true;
}

bool ChunkStoring::is_waiting() const {
  if (!failed_.ok()) return false;  // its next turn says so
  // Where there is no anchor any more, computing could not begin.
  if (stage_ == Stage::kAnchor) return anchor_ != nullptr && anchor_->is_waiting();
  return stage_ == Stage::kArrive &&
         absl::IsDeadlineExceeded(stored_.entry->AcquireLayer(layer_, absl::InfinitePast()).status());
}

absl::Status ChunkStoring::StoreAnchor(blend::KeepGoing keep_going) {
  KVBLEND_RETURN_IF_ERROR(keep_going());
  const absl::StatusOr<bool> done = anchor_->Step(keep_going);
  if (done.ok() && !*done) return absl::OkStatus();
  // A store too full or too small for the anchor costs time, not the chunk.
  if (!done.ok() && !absl::IsResourceExhausted(done.status()) && !absl::IsFailedPrecondition(done.status())) {
    return done.status();
  }
  anchor_seconds_ = anchor_->compute_seconds();
  if (done.ok()) {
    StoredChunk anchor = anchor_->TakeStored();
    stored_.computed_tokens += anchor.computed_tokens;
    anchor_entry_ = std::move(anchor.entry);
  }
  anchor_.reset();
  return BeginComputing();
}

absl::Status ChunkStoring::BeginComputing() {
  const absl::Time start = SteadyNow();
  ModelRuntime& runtime = engine_.runtime;
  pages_ = std::make_unique<kv::SequencePages>(*runtime.page_pool);
  KVBLEND_RETURN_IF_ERROR(pages_->Grow(static_cast<int64_t>(anchor_ids_.size() + token_ids_.size())));
  scratch_ = engine_.scratch.Borrow();
  // All of the anchor is there: it has been waited for.
  KVBLEND_ASSIGN_OR_RETURN(
      precompute_, blend::ChunkPrecompute::Create(
                       {.anchor_ids = anchor_ids_,
                        .anchor = anchor_entry_.has_value() ? &*anchor_entry_ : nullptr,
                        .token_ids = token_ids_},
                       runtime.key_space.format, *runtime.host_memory, *runtime.transformer, *runtime.stream,
                       scratch_->state, blend::PagedSequence(*runtime.backend, *runtime.page_pool, *pages_)));
  stage_ = Stage::kCompute;
  compute_seconds_ = absl::ToDoubleSeconds(SteadyNow() - start);
  return absl::OkStatus();
}

absl::StatusOr<bool> ChunkStoring::Compute(blend::KeepGoing keep_going) {
  const absl::Time start = SteadyNow();
  KVBLEND_ASSIGN_OR_RETURN(const bool done, precompute_->Step(keep_going));
  compute_seconds_ += absl::ToDoubleSeconds(SteadyNow() - start);
  if (done) KVBLEND_RETURN_IF_ERROR(Commit());
  return done;
}

absl::Status ChunkStoring::Commit() {
  std::unique_ptr<store::ChunkKv> kv = precompute_->TakeChunk();
  precompute_.reset();
  pages_.reset();
  scratch_.reset();
  stored_.compute_seconds = compute_seconds_;
  stored_.computed_tokens += stored_.num_tokens;
  if (!anchor_entry_.has_value()) stored_.computed_tokens += static_cast<int32_t>(anchor_ids_.size());
  const store::InsertOptions insert{.compute_cost_seconds = compute_seconds_,
                                    .pinned = options_.pinned,
                                    .on_purpose = options_.on_purpose,
                                    .label = options_.label};
  absl::StatusOr<store::ChunkHandle> entry =
      reservation_.has_value() ? reservation_->Commit(std::move(kv), insert)
                               : engine_.chunk_store.Insert(address_, std::move(kv), insert);
  if (!entry.ok()) return entry.status();
  stored_.entry = *std::move(entry);
  return absl::OkStatus();
}

}  // namespace kvblend
