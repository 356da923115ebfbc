#include "kernels/cuda/runtime/plan_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::kernels::cuda {
namespace {

// Smallest size; larger ones are powers of two, so that plans which grow token by token share a few.
constexpr int64_t kLeastBytes = 16 << 10;

absl::Status ForPlan(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("PlanBatch: ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanMemory>> PlanMemory::Allocate(int64_t bytes) {
  auto device = DeviceBuffer::Allocate("PlanBatch", bytes);
  if (!device.ok()) return device.status();
  std::unique_ptr<PlanMemory> memory(new PlanMemory(*std::move(device)));
  const auto host = PinnedAllocate(bytes);
  if (!host.ok()) return ForPlan(host.status());
  memory->host_ = static_cast<unsigned char*>(*host);
  const auto event = CreateDeviceEvent();
  if (!event.ok()) return ForPlan(event.status());
  memory->copied_ = *event;
  return memory;
}

PlanMemory::~PlanMemory() {
  device_.reset();  // waits for the copy from pinned memory, too
  const absl::MutexLock lock(&mutex_);
  if (copied_ != nullptr) DestroyDeviceEvent(copied_);
  for (const EventHandle end : ends_) DestroyDeviceEvent(end);
  if (host_ != nullptr) PinnedFree(host_);
}

absl::Status PlanMemory::MakeReady(const DeviceStream& stream, int64_t bytes) {
  const absl::MutexLock lock(&mutex_);
  const std::shared_ptr<LivingStream>& user = stream.living();
  if (std::find(users_.begin(), users_.end(), user) != users_.end()) return absl::OkStatus();
  if (users_.empty()) {
    if (auto s = EnqueueCopyFromHost(stream.handle(), device_->data(), host_, bytes); !s.ok()) return s;
    if (auto s = RecordEvent(copied_, stream.handle()); !s.ok()) return s;
  } else if (auto s = WaitForEvent(stream.handle(), copied_); !s.ok()) {
    return s;
  }
  users_.push_back(user);
  return absl::OkStatus();
}

void PlanMemory::EndUse() {
  const absl::MutexLock lock(&mutex_);
  while (ends_.size() < users_.size()) {
    const auto event = CreateDeviceEvent();
    if (!event.ok()) break;
    ends_.push_back(*event);
  }
  for (size_t i = 0; i < users_.size(); ++i) {
    // Where the end of the use can't be marked, it is waited for.
    if (i >= ends_.size() || !users_[i]->Record(ends_[i])) users_[i]->Synchronize();
  }
  users_.clear();
}

bool PlanMemory::IsIdle() {
  const absl::MutexLock lock(&mutex_);
  return std::all_of(ends_.begin(), ends_.end(), [](EventHandle end) { return EventIsReached(end); });
}

absl::StatusOr<std::unique_ptr<PlanMemory>> PlanMemoryPool::Take(int64_t bytes) {
  const auto size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeastBytes))));
  {
    const absl::MutexLock lock(&mutex_);
    for (auto& memory : returned_) {
      if (memory->size_bytes() != size || !memory->IsIdle()) continue;
      std::swap(memory, returned_.back());
      std::unique_ptr<PlanMemory> taken = std::move(returned_.back());
      returned_.pop_back();
      return taken;
    }
  }
  auto memory = PlanMemory::Allocate(size);
  if (memory.ok()) return memory;
  // The memory that earlier plans of other sizes have left may be enough.
  std::vector<std::unique_ptr<PlanMemory>> returned;
  {
    const absl::MutexLock lock(&mutex_);
    returned.swap(returned_);
  }
  if (returned.empty()) return memory;
  returned.clear();
  return PlanMemory::Allocate(size);
}

void PlanMemoryPool::Return(std::unique_ptr<PlanMemory> memory) {
  memory->EndUse();
  const absl::MutexLock lock(&mutex_);
  returned_.push_back(std::move(memory));
}

}  // namespace kvblend::kernels::cuda
