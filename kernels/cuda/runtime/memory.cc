#include "kernels/cuda/runtime/memory.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime/section_staging.h"

namespace kvblend::kernels::cuda {
namespace {

std::atomic<int64_t> freed_buffers = 0;

}  // namespace

int64_t FreedDeviceBuffers() { return freed_buffers.load(); }

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  freed_buffers.fetch_add(1);
  DeviceFree(data_);
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> DeviceBuffer::Allocate(absl::string_view op, int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat(op, ": bytes is ", bytes, "; allowed: at least 0"));
  void* data = nullptr;
  if (bytes > 0) {
    auto allocated = DeviceAllocate(bytes);
    if (!allocated.ok()) {
      return absl::Status(allocated.status().code(), absl::StrCat(op, ": ", allocated.status().message()));
    }
    data = *allocated;
  }
  return std::unique_ptr<DeviceBuffer>(new DeviceBuffer(data, bytes));
}

absl::StatusOr<std::unique_ptr<DeviceStream>> DeviceStream::Create() {
  auto handle = CreateDeviceStream();
  if (!handle.ok()) return handle.status();
  return std::unique_ptr<DeviceStream>(new DeviceStream(*handle));
}

DeviceStream::DeviceStream(StreamHandle handle)
    : handle_(handle), living_(std::make_shared<LivingStream>(handle)) {}

DeviceStream::~DeviceStream() {
  for (const EventHandle event : timed_events_) DestroyDeviceEvent(event);
  living_->End();
}

absl::StatusOr<const void*> DeviceStream::BringSection(const void* source, int64_t bytes) {
  if (staging_ == nullptr) {
    auto created = SectionStaging::Create();
    if (!created.ok()) return created.status();
    staging_ = *std::move(created);
  }
  return staging_->Bring(source, bytes);
}

absl::Status DeviceStream::AwaitSections() {
  return staging_ == nullptr ? absl::OkStatus() : staging_->Await(handle());
}

absl::Status DeviceStream::ReleaseSections() {
  return staging_ == nullptr ? absl::OkStatus() : staging_->Release(handle());
}

absl::StatusOr<EventHandle> DeviceStream::TakeTimedEvent() {
  if (timed_events_.empty()) return CreateTimedEvent();
  const EventHandle event = timed_events_.back();
  timed_events_.pop_back();
  return event;
}

absl::Status DeviceStream::Synchronize() {
  const absl::Status status = SynchronizeStream(handle());
  ++synchronisations_;
  if (status.ok()) {
    for (const Delivery& delivery : deliveries_) {
      std::memcpy(delivery.target, delivery.source, static_cast<size_t>(delivery.bytes));
    }
  }
  deliveries_.clear();
  return status;
}

bool LivingStream::Record(EventHandle event) {
  const absl::MutexLock lock(&mutex_);
  return handle_ != nullptr && RecordEvent(event, handle_).ok();
}

void LivingStream::Synchronize() {
  const absl::MutexLock lock(&mutex_);
  if (handle_ != nullptr) SynchronizeStream(handle_).IgnoreError();
}

void LivingStream::End() {
  const absl::MutexLock lock(&mutex_);
  DestroyDeviceStream(handle_);
  handle_ = nullptr;
}

absl::StatusOr<void*> DeviceStream::ScratchMemory(Scratch use, int64_t bytes) {
  auto& buffer = scratch_[static_cast<size_t>(use)];
  if (buffer == nullptr || buffer->size_bytes() < bytes) {
    if (recording_ != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "scratch memory: ", bytes, " bytes are more than there are when the step is recorded"));
    }
    buffer.reset();
    auto larger = DeviceBuffer::Allocate("scratch memory", bytes);
    if (!larger.ok()) return larger.status();
    buffer = *std::move(larger);
  }
  DiscardContents(handle(), buffer->data(), bytes);
  return buffer->data();
}

}  // namespace kvblend::kernels::cuda
