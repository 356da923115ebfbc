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
    : source_(std::move(source)),
      kv_(std::move(kv)),
      prompt_(prompt),
      meter_(meter),
      missing_(kv_->size_bytes() == 0 ? 0 : kv_->format().num_layers),
      unasked_(missing_.load()),
      asked_(kv_->format().num_layers, kv_->size_bytes() == 0),
      arrived_(kv_->format().num_layers, kv_->size_bytes() == 0) {}

void ArrivingKv::AskAs(uint64_t prompt, int32_t layer) {
  {
    absl::MutexLock lock(&mutex_);
    if (asked_[layer] || cancelled_ || !failure_.ok()) return;
    asked_[layer] = true;
    unasked_.fetch_sub(1, std::memory_order_release);
  }
  meter_.Begin(tier());
  // The callback holds on to the memory that is being written.
  const absl::StatusOr<ReadId> id = source_->ReadLayer(
      layer, kv_->MutableLayerBytes(layer), {prompt, layer},
      [self = shared_from_this(), layer](absl::Status status) { self->LayerDone(layer, status); });
  if (!id.ok()) return LayerDone(layer, id.status());
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      reads_.push_back(*id);
      return;
    }
  }
  source_->CancelRead(*id);
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
  meter_.End(tier(), status.ok() ? kv_->layer_bytes() : 0);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    arrived_[layer] = true;
    missing_.fetch_sub(1, std::memory_order_release);
  } else if (failure_.ok()) {
    refused_ = absl::IsResourceExhausted(status);
    failure_ = absl::DataLossError(absl::StrCat("chunk ", source_->header().address.key.ToHex(), ": layer ",
                                                layer, " could not be read: ", status.message()));
  }
}

absl::Status ArrivingKv::WaitForLayer(int32_t layer, absl::Time deadline) {
  if (complete()) return absl::OkStatus();
  Ask(layer);
  absl::MutexLock lock(&mutex_);
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return arrived_[layer] || !failure_.ok(); };
  if (!mutex_.AwaitWithDeadline(absl::Condition(&settled), deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("chunk ", source_->header().address.key.ToHex(),
                                                    ": layer ", layer, " has not arrived yet"));
  }
  // A later layer's failure makes the whole chunk a miss: better to hear of it now.
  return failure_;
}

void ArrivingKv::Cancel() {
  std::vector<ReadId> reads;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    reads.swap(reads_);
  }
  if (complete()) return;
  for (const ReadId id : reads) source_->CancelRead(id);
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
