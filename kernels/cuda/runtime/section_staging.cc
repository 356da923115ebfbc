#include "kernels/cuda/runtime/section_staging.h"

#include <bit>
#include <cstddef>
#include <utility>

namespace kvblend::kernels::cuda {

absl::StatusOr<std::unique_ptr<SectionStaging>> SectionStaging::Create() {
  std::unique_ptr<SectionStaging> staging(new SectionStaging());
  auto stream = CreateDeviceStream();
  if (!stream.ok()) return stream.status();
  staging->copying_ = *stream;
  const auto create = [](EventHandle& event) {
    auto created = CreateDeviceEvent();
    if (created.ok()) event = *created;
    return created.status();
  };
  if (auto s = create(staging->arrived_); !s.ok()) return s;
  for (EventHandle& event : staging->released_) {
    if (auto s = create(event); !s.ok()) return s;
  }
  return staging;
}

SectionStaging::~SectionStaging() {
  if (copying_ != nullptr) DestroyDeviceStream(copying_);
  if (arrived_ != nullptr) DestroyDeviceEvent(arrived_);
  for (const EventHandle event : released_) {
    if (event != nullptr) DestroyDeviceEvent(event);
  }
}

bool SectionStaging::IsFree(int64_t batch) {
  if (batch == batch_) return false;
  if (batch > free_ && EventIsReached(released_[batch % kSlots])) free_ = batch;
  return batch <= free_;
}

SectionStaging::Slot& SectionStaging::NextSlot() {
  // Where nothing is in use any more, as between prompts, equal prompts get the same slots, which have the
  // right size.
  if (is_released_ && IsFree(batch_ - 1)) next_ = 0;
  if (next_ == slots_.size()) next_ = 0;
  // The next one is the one that was used longest ago.
  if (slots_.size() < kSlots && (slots_.empty() || !IsFree(slots_[next_].batch))) {
    slots_.emplace(slots_.begin() + static_cast<std::ptrdiff_t>(next_));
  }
  return slots_[next_++];
}

absl::StatusOr<const void*> SectionStaging::Bring(const void* source, int64_t bytes) {
  Slot& slot = NextSlot();
  if (slot.buffer == nullptr || slot.buffer->size_bytes() < bytes) {
    slot.buffer.reset();  // waits for what still uses it
    auto larger = DeviceBuffer::Allocate("staging memory",
                                         static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))));
    if (!larger.ok()) return larger.status();
    slot.buffer = *std::move(larger);
  }
  // Both streams run in order: who has waited for one batch has waited for all before it.
  if (slot.batch > waited_) {
    if (auto s = WaitForEvent(copying_, released_[slot.batch % kSlots]); !s.ok()) return s;
    waited_ = slot.batch;
  }
  if (auto s = EnqueueCopyFromHost(copying_, slot.buffer->data(), source, bytes); !s.ok()) return s;
  slot.batch = batch_;
  is_awaited_ = false;
  is_released_ = false;
  return slot.buffer->data();
}

absl::Status SectionStaging::Await(StreamHandle computing) {
  if (std::exchange(is_awaited_, true)) return absl::OkStatus();
  if (auto s = RecordEvent(arrived_, copying_); !s.ok()) return s;
  return WaitForEvent(computing, arrived_);
}

absl::Status SectionStaging::Release(StreamHandle computing) {
  if (std::exchange(is_released_, true)) return absl::OkStatus();
  if (auto s = RecordEvent(released_[batch_ % kSlots], computing); !s.ok()) return s;
  ++batch_;
  return absl::OkStatus();
}

}  // namespace kvblend::kernels::cuda
