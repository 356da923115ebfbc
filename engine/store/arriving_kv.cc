#include "engine/store/arriving_kv.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace kvblend::store {

ArrivingKv::ArrivingKv(std::shared_ptr<LowerTierEntry> source, std::shared_ptr<ChunkKv> kv, uint64_t prompt,
                       ReadMeter& meter)
    : key_(source->header().address.key),
      tier_(source->tier()),
      kv_(std::move(kv)),
      prompt_(prompt),
      meter_(meter),
      missing_(kv_->size_bytes() == 0 ? 0 : kv_->format().num_layers),
      unasked_(missing_.load()),
      source_(missing_.load() == 0 ? nullptr : std::move(source)),
      asked_(kv_->format().num_layers, kv_->size_bytes() == 0),
      arrived_(kv_->format().num_layers, kv_->size_bytes() == 0) {}

void ArrivingKv::AskAs(uint64_t prompt, int32_t layer) {
  std::shared_ptr<LowerTierEntry> source;
  {
    absl::MutexLock lock(&mutex_);
    if (asked_[layer] || source_ == nullptr) return;
    source = source_;
    asked_[layer] = true;
    unasked_.fetch_sub(1, std::memory_order_release);
  }
  meter_.Begin(tier_);
  // The callback holds on to the memory that is being written.
  const absl::StatusOr<ReadId> id = source->ReadLayer(
      layer, kv_->MutableLayerBytes(layer), {prompt, layer},
      [self = shared_from_this(), layer](absl::Status status) { self->LayerDone(layer, status); });
  if (!id.ok()) return LayerDone(layer, id.status());
  {
    absl::MutexLock lock(&mutex_);
    if (source_ != nullptr) {
      reads_.push_back(*id);
      return;
    }
  }
  source->CancelRead(*id);  // no effect if it was the last one
}

void ArrivingKv::AskForRest() {
  constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();
  for (int32_t layer = 0; layer < num_layers() && num_unasked() > 0; ++layer) AskAs(kNobody, layer);
}

void PromptReads::AskForAll() {
  int32_t num_layers = 0;
  for (const auto& arriving : arriving_) num_layers = std::max(num_layers, arriving->num_layers());
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (const auto& arriving : arriving_) {
      if (layer < arriving->num_layers()) arriving->Ask(layer);
    }
  }
}

absl::Time PromptReads::LookupDeadline(absl::Duration budget) {
  if (!lookup_deadline_.has_value()) lookup_deadline_ = SteadyNow() + budget;
  return *lookup_deadline_;
}

void ArrivingKv::LayerDone(int32_t layer, const absl::Status& status) {
  meter_.End(tier_, status.ok() ? kv_->layer_bytes() : 0);
  Ended ended;
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    arrived_[layer] = true;
    if (missing_.fetch_sub(1, std::memory_order_release) == 1) End(ended);
  } else if (failure_.ok()) {
    End(ended);
    refused_ = absl::IsResourceExhausted(status);
    failure_ = absl::DataLossError(
        absl::StrCat("chunk ", key_.ToHex(), ": layer ", layer, " could not be read: ", status.message()));
  }
}

absl::Status ArrivingKv::WaitForLayer(int32_t layer, absl::Time deadline) {
  if (complete()) return absl::OkStatus();
  Ask(layer);
  absl::MutexLock lock(&mutex_);
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return arrived_[layer] || !failure_.ok(); };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&settled), deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("chunk ", key_.ToHex(), ": layer ", layer, " has not arrived yet"));
  }
  // A later layer's failure makes the whole chunk a miss: better to hear of it now.
  return failure_;
}

void ArrivingKv::Cancel() {
  Ended ended;
  absl::MutexLock lock(&mutex_);
  End(ended);
}

void ArrivingKv::End(Ended& ended) {
  ended.source = std::exchange(source_, nullptr);
  ended.reads.swap(reads_);
}

ArrivingKv::Ended::~Ended() {
  if (source == nullptr) return;
  for (const ReadId id : reads) source->CancelRead(id);
}

bool ArrivingKv::refused() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

bool ArrivingKv::failed() const {
  absl::MutexLock lock(&mutex_);
  return !failure_.ok();
}

}  // namespace kvblend::store
