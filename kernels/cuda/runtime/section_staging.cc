#include "kernels/cuda/runtime/section_staging.h"

#include <bit>
#include <utility>

namespace kvblend::kernels::cuda {

absl::StatusOr<std::unique_ptr<SectionStaging>> SectionStaging::Create() {
  std::unique_ptr<SectionStaging> staging(new SectionStaging());
  auto stream = CreateDeviceStream();
  if (!stream.ok()) return stream.status();
  staging->copying_ = *stream;
  for (Slot& slot : staging->slots_) {
    for (EventHandle* event : {&slot.arrived, &slot.released}) {
      auto created = CreateDeviceEvent();
      if (!created.ok()) return created.status();
      *event = *created;
    }
  }
  return staging;
}

SectionStaging::~SectionStaging() {
  if (copying_ != nullptr) DestroyDeviceStream(copying_);
  for (const Slot& slot : slots_) {
    for (const EventHandle event : {slot.arrived, slot.released}) {
      if (event != nullptr) DestroyDeviceEvent(event);
    }
  }
}

absl::StatusOr<const void*> SectionStaging::Bring(StreamHandle computing, const void* source, int64_t bytes) {
  Slot& slot = slots_[next_];
  if (slot.buffer == nullptr || slot.buffer->size_bytes() < bytes) {
    slot.buffer.reset();  // waits for what still uses it
    auto larger = DeviceBuffer::Allocate("staging memory",
                                         static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes))));
    if (!larger.ok()) return larger.status();
    slot.buffer = *std::move(larger);
  }
  if (auto s = WaitForEvent(copying_, slot.released); !s.ok()) return s;
  if (auto s = EnqueueCopyFromHost(copying_, slot.buffer->data(), source, bytes); !s.ok()) return s;
  if (auto s = RecordEvent(slot.arrived, copying_); !s.ok()) return s;
  if (auto s = WaitForEvent(computing, slot.arrived); !s.ok()) return s;
  next_ = (next_ + 1) % kSlots;
  ++brought_;
  return slot.buffer->data();
}

absl::Status SectionStaging::Release(StreamHandle computing) {
  for (; brought_ > 0; --brought_) {
    Slot& slot = slots_[(next_ + kSlots - brought_) % kSlots];
    if (auto s = RecordEvent(slot.released, computing); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels::cuda
