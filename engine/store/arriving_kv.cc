#include "engine/store/arriving_kv.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace kvblend::store {

ArrivingKv::ArrivingKv(std::shared_ptr<LowerTierEntry> source, std::shared_ptr<ChunkKv> kv, ReadMeter& meter)
    : key_(source->header().address.key),
      tier_(source->tier()),
      kv_(std::move(kv)),
      meter_(meter),
      missing_(kv_->size_bytes() == 0 ? 0 : kv_->format().num_layers),
      unasked_(missing_.load()),
      source_(missing_.load() == 0 ? nullptr : std::move(source)),
      layers_(kv_->format().num_layers) {
  for (Layer& layer : layers_) layer.asked = layer.arrived = complete();
}

void ArrivingKv::Ask(Reader reader, int32_t layer) {
  const ReadPriority priority{reader, layer};
  std::shared_ptr<LowerTierEntry> source;
  std::optional<ReadId> waiting;
  {
    absl::MutexLock lock(&mutex_);
    Layer& asked = layers_[layer];
    if (source_ == nullptr || asked.arrived || (asked.asked && asked.priority <= priority)) return;
    asked.priority = priority;
    if (std::exchange(asked.asked, true)) {
      if (!asked.read.has_value()) return;  // it is being asked for just now; see below
      waiting = asked.read;
    } else {
      unasked_.fetch_sub(1, std::memory_order_release);
    }
    source = source_;
  }
  if (waiting.has_value()) return source->RaiseRead(*waiting, priority);
  meter_.Begin(tier_);
  // The callback holds on to the memory that is being written.
  const absl::StatusOr<ReadId> id = source->ReadLayer(
      layer, kv_->MutableLayerBytes(layer), priority,
      [self = shared_from_this(), layer](absl::Status status) { self->LayerDone(layer, status); });
  if (!id.ok()) return LayerDone(layer, id.status());
  std::optional<ReadPriority> wanted;
  {
    absl::MutexLock lock(&mutex_);
    layers_[layer].read = *id;
    if (source_ != nullptr) wanted = layers_[layer].priority;
  }
  if (!wanted.has_value()) {
    source->CancelRead(*id);  // no effect if it was the last one
  } else if (*wanted < priority) {
    source->RaiseRead(*id, *wanted);  // somebody else has asked meanwhile
  }
}

void ArrivingKv::AskForRest() {
  for (int32_t layer = 0; layer < num_layers() && num_unasked() > 0; ++layer) Ask({ReadFor::kNobody}, layer);
}

void PromptReads::AskForAll() {
  int32_t num_layers = 0;
  for (const auto& arriving : arriving_) num_layers = std::max(num_layers, arriving->num_layers());
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (const auto& arriving : arriving_) {
      if (layer < arriving->num_layers()) arriving->Ask(reader_, layer);
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
    layers_[layer].arrived = true;
    if (missing_.fetch_sub(1, std::memory_order_release) == 1) End(ended);
  } else if (failure_.ok()) {
    End(ended);
    refused_ = absl::IsResourceExhausted(status);
    failure_ = absl::DataLossError(
        absl::StrCat("chunk ", key_.ToHex(), ": layer ", layer, " could not be read: ", status.message()));
  }
}

absl::Status ArrivingKv::WaitForLayer(Reader reader, int32_t layer, absl::Time deadline) {
  if (complete()) return absl::OkStatus();
  Ask(reader, layer);
  absl::MutexLock lock(&mutex_);
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return layers_[layer].arrived || !failure_.ok();
  };
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
  for (const Layer& layer : layers_) {
    if (layer.read.has_value() && !layer.arrived) ended.reads.push_back(*layer.read);
  }
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
