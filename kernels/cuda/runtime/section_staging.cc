#include "kernels/cuda/runtime/section_staging.h"

#include <bit>
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

absl::StatusOr<const void*> SectionStaging::Bring(const void* source, int64_t bytes) {
  Slot& slot = slots_[next_];
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
  next_ = (next_ + 1) % kSlots;
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
