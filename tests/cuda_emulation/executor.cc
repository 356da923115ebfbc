#include "tests/cuda_emulation/executor.h"

#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

// Defined by the build: this file itself is not instrumented, for speed.
#ifdef KVBLEND_FIBERS_UNDER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvblend::cuda_emulation {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

const char* Name(Collective kind) {
  constexpr const char* kNames[] = {"SyncThreads", "SyncWarp", "a shuffle", "a vote", "LoadMatrix4", "Mma"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

std::string ToString(const Site& site) { return std::string(site.file) + ":" + std::to_string(site.line); }

void Fail(const std::string& message) {
  std::fprintf(stderr, "CUDA emulation: %s%s\n", Executor::Current().Describe().c_str(), message.c_str());
  std::fflush(stderr);
  std::abort();
}

// A thread's stays until the program ends: what a thread destroys on its way out, streams for instance, may
// still run kernels.
Executor& Executor::Current() {
  static std::mutex mutex;
  static auto& executors = *new std::vector<std::unique_ptr<Executor>>;
  static thread_local Executor* const executor = [] {
    const std::lock_guard lock(mutex);
    return executors.emplace_back(new Executor).get();
  }();
  return *executor;
}

Executor::~Executor() {
  quit_ = true;
  for (auto& thread : threads_) {
    if (thread->fiber) SwitchTo(thread.get());
  }
}

std::string Executor::Describe() const {
  if (running_executor_ != this || current_ == &scheduler_) return "";
  return kernel_ + ", block (" + std::to_string(block_.x) + ", " + std::to_string(block_.y) + ", " +
         std::to_string(block_.z) + "), thread " + std::to_string(current_->index) +
         (current_->site.line == 0 ? "" : ", after " + ToString(current_->site)) + ": ";
}

void Executor::Run(const std::string& kernel, const kernels::cuda::LaunchShape& shape,
                   absl::FunctionRef<void()> body) {
  kernel_ = kernel;
  shape_ = shape;
  body_ = &body;
  num_threads_ = shape.threads;
  for (int i = static_cast<int>(threads_.size()); i < num_threads_; ++i) CreateThread(i);
  if (warps_.size() < threads_.size() / kWarpSize) warps_.resize(threads_.size() / kWarpSize);
  running_executor_ = this;
  for (block_.z = 0; block_.z < shape.blocks_z; ++block_.z) {
    for (block_.y = 0; block_.y < shape.blocks_y; ++block_.y) {
      for (block_.x = 0; block_.x < shape.blocks_x; ++block_.x) RunBlock();
    }
  }
  running_executor_ = nullptr;
}

void Executor::RunBlock() {
  shared_.BeginBlock(shape_.shared_bytes);
  num_done_ = at_barrier_ = 0;
  for (int i = 0; i < num_threads_; ++i) {
    Thread& thread = *threads_[i];
    thread.state = Thread::State::kReady;
    thread.site = {};
    thread.shared_taken = 0;
  }
  current_ = &scheduler_;
  SwitchTo(threads_[0].get());
}

void Executor::CreateThread(int index) {
  threads_.push_back(std::make_unique<Thread>());
  Thread& thread = *threads_.back();
  thread.index = index;
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  thread.stack_bottom = static_cast<const char*>(stack.sp) - stack.size;
  thread.stack_size = stack.size;
  thread.fiber = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), allocator,
      [this](boost::context::fiber&& from) {
        previous_->fiber = std::move(from);
        AfterSwitch();
        FiberMain();
#ifdef KVBLEND_FIBERS_UNDER_ASAN
        __sanitizer_start_switch_fiber(nullptr, scheduler_.stack_bottom, scheduler_.stack_size);
#endif
        previous_ = std::exchange(current_, &scheduler_);
        return std::move(scheduler_.fiber);
      });
}

// One fiber runs the same thread index of block after block.
void Executor::FiberMain() {
  while (!quit_) {
    (*body_)();
    Thread& thread = *current_;
    if (!thread.copies.empty()) Fail("the thread returns with CopyAsync16s that it has not waited for");
    thread.state = Thread::State::kDone;
    ++num_done_;
    SwitchToNext();
  }
}

void Executor::SwitchTo(Thread* next) {
  Thread* self = current_ == nullptr ? &scheduler_ : current_;
  previous_ = self;
  current_ = next;
#ifdef KVBLEND_FIBERS_UNDER_ASAN
  __sanitizer_start_switch_fiber(&self->fake_stack, next->stack_bottom, next->stack_size);
#endif
  boost::context::fiber from = std::move(next->fiber).resume();
  previous_->fiber = std::move(from);
  AfterSwitch();
}

void Executor::AfterSwitch() {
#ifdef KVBLEND_FIBERS_UNDER_ASAN
  __sanitizer_finish_switch_fiber(current_->fake_stack, &previous_->stack_bottom, &previous_->stack_size);
#endif
}

void Executor::SwitchToNext() {
  const int self = current_->index;
  for (int step = 1; step <= num_threads_; ++step) {
    const int index = self + step < num_threads_ ? self + step : self + step - num_threads_;
    Thread* next = threads_[index].get();
    if (next->state != Thread::State::kReady) continue;
    if (next != current_) SwitchTo(next);
    return;
  }
  if (num_done_ != num_threads_) FailStuck();
  SwitchTo(&scheduler_);
}

void Executor::FailStuck() {
  const Thread* returned = nullptr;
  const Thread* at_barrier = nullptr;
  const Thread* in_warp = nullptr;
  for (int i = num_threads_ - 1; i >= 0; --i) {
    const Thread* thread = threads_[i].get();
    if (thread->state == Thread::State::kDone) returned = thread;
    if (thread->state == Thread::State::kAtSyncThreads) at_barrier = thread;
    if (thread->state == Thread::State::kAtWarpCollective) in_warp = thread;
  }
  std::string message = "divergence: ";
  if (in_warp != nullptr) {
    const Warp& warp = warps_[in_warp->index / kWarpSize];
    message += "thread " + std::to_string(in_warp->index) + " waits for its warp at " + Name(warp.kind) +
               " (" + ToString(warp.site) + ")";
  }
  if (at_barrier != nullptr) {
    message += std::string(in_warp == nullptr ? "" : ", ") + "thread " + std::to_string(at_barrier->index) +
               " waits for its block at SyncThreads (" + ToString(at_barrier->site) + ")";
  }
  if (returned != nullptr) message += ", thread " + std::to_string(returned->index) + " has returned";
  Fail(message);
}

void Executor::SyncThreads(Site site) {
  if (at_barrier_ == 0) {
    barrier_site_ = site;
  } else if (!(barrier_site_ == site)) {
    Fail("divergence: SyncThreads at " + ToString(site) + " while other threads of the block wait at " +
         ToString(barrier_site_));
  }
  current_->site = site;
  if (++at_barrier_ == num_threads_) {
    at_barrier_ = 0;
    shared_.NextInterval();
    for (int i = 0; i < num_threads_; ++i) threads_[i]->state = Thread::State::kReady;
    return;
  }
  current_->state = Thread::State::kAtSyncThreads;
  SwitchToNext();
}

LaneSlot* Executor::WarpCollective(Collective kind, Site site, const void* data, size_t bytes,
                                   Combine combine) {
  Thread& thread = *current_;
  Warp& warp = warps_[thread.index / kWarpSize];
  if (warp.arrived == 0) {
    warp.kind = kind;
    warp.site = site;
  } else if (warp.kind != kind || !(warp.site == site)) {
    Fail(std::string("divergence: ") + Name(kind) + " at " + ToString(site) +
         " while other lanes of the warp wait at " + Name(warp.kind) + " (" + ToString(warp.site) + ")");
  }
  thread.site = site;
  LaneSlot* slots = warp.slots[thread.parity];
  thread.parity ^= 1;
  if (bytes > 0) std::memcpy(slots[thread.index % kWarpSize].bytes, data, bytes);
  if (++warp.arrived == kWarpSize) {
    warp.arrived = 0;
    if (kind == Collective::kSyncWarp) ++warp.epoch;
    if (combine != nullptr) combine(slots);
    const int first = thread.index / kWarpSize * kWarpSize;
    for (int i = first; i < first + kWarpSize; ++i) threads_[i]->state = Thread::State::kReady;
  } else {
    thread.state = Thread::State::kAtWarpCollective;
    SwitchToNext();
  }
  return slots;
}

void Executor::StartCopy(uint32_t offset, const void* source, uint32_t valid_bytes) {
  shared_.StartCopy(current_->index, warp_epoch(), offset, 16);
  current_->copies.push_back({offset, valid_bytes, source});
  ++current_->uncommitted;
}

void Executor::CommitCopies() { current_->groups.push_back(std::exchange(current_->uncommitted, 0)); }

void Executor::WaitCopies(size_t groups_left) {
  Thread& thread = *current_;
  size_t arrived = 0;
  while (thread.groups.size() > groups_left) {
    arrived += thread.groups.front();
    thread.groups.erase(thread.groups.begin());
  }
  for (size_t i = 0; i < arrived; ++i) {
    const PendingCopy& copy = thread.copies[i];
    unsigned char bytes[16] = {};
    if (copy.valid_bytes > 0) std::memcpy(bytes, copy.source, copy.valid_bytes);
    shared_.FinishCopy(thread.index, warp_epoch(), copy.offset, bytes, 16);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<ptrdiff_t>(arrived));
}

}  // namespace kvblend::cuda_emulation
