// Shows Abseil's locks to ThreadSanitizer. Linked into every program of the tsan preset, into no other.
//
// Debian's libabsl is not built with ThreadSanitizer, so that what absl::Mutex orders looks unordered, and
// everything it guards a data race. Here the functions of Abseil that synchronise are defined again, each as
// a call of the library's own between the annotations that Abseil makes when it is built with
// ThreadSanitizer. Being in the program, they go before the shared library's, for calls from inside that
// library too.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/config.h"
#include "absl/base/options.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

#define KVBLEND_QUOTED(x) #x
#define KVBLEND_EXPANDED_AND_QUOTED(x) KVBLEND_QUOTED(x)

/// The library's own function `prefix` + "4absl" + the inline namespace of this Abseil + `rest`: a name as
/// the Itanium C++ ABI mangles it. S0_ in `rest` stands for absl with that namespace.
void* Original(const char* prefix, const char* rest) {
  const std::string inline_namespace = KVBLEND_EXPANDED_AND_QUOTED(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string symbol =
      std::string(prefix) + "4absl" + std::to_string(inline_namespace.size()) + inline_namespace + rest;
  void* address = dlsym(RTLD_NEXT, symbol.c_str());
  if (address == nullptr) {
    std::fprintf(stderr, "absl_for_tsan: %s\n", dlerror());
    std::abort();
  }
  return address;
}

/// A member function's address can be called as a function that takes the object first.
template <typename Result, typename... Args>
using Function = Result (*)(Args...);

void BeforeWait(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  __tsan_mutex_pre_lock(mutex, 0);
}
void AfterWait(absl::Mutex* mutex) { __tsan_mutex_post_lock(mutex, 0, 0); }

}  // namespace

#define KVBLEND_ORIGINAL(prefix, rest, ...) \
  static const auto original = reinterpret_cast<Function<__VA_ARGS__>>(Original(prefix, rest))

namespace absl {
ABSL_NAMESPACE_BEGIN

// --- Mutex

Mutex::~Mutex() {
  KVBLEND_ORIGINAL("_ZN", "5MutexD1Ev", void, Mutex*);
  original(this);
  __tsan_mutex_destroy(this, 0);
}

#define KVBLEND_LOCK(name, mangled, flags)          \
  void Mutex::name() {                              \
    KVBLEND_ORIGINAL("_ZN", mangled, void, Mutex*); \
    __tsan_mutex_pre_lock(this, flags);             \
    original(this);                                 \
    __tsan_mutex_post_lock(this, flags, 0);         \
  }
#define KVBLEND_UNLOCK(name, mangled, flags)        \
  void Mutex::name() {                              \
    KVBLEND_ORIGINAL("_ZN", mangled, void, Mutex*); \
    __tsan_mutex_pre_unlock(this, flags);           \
    original(this);                                 \
    __tsan_mutex_post_unlock(this, flags);          \
  }
#define KVBLEND_TRY_LOCK(name, mangled, flags)                                                   \
  bool Mutex::name() {                                                                           \
    KVBLEND_ORIGINAL("_ZN", mangled, bool, Mutex*);                                              \
    __tsan_mutex_pre_lock(this, (flags) | __tsan_mutex_try_lock);                                \
    const bool locked = original(this);                                                          \
    __tsan_mutex_post_lock(                                                                      \
        this, (flags) | __tsan_mutex_try_lock | (locked ? 0 : __tsan_mutex_try_lock_failed), 0); \
    return locked;                                                                               \
  }

KVBLEND_LOCK(Lock, "5Mutex4LockEv", 0)
KVBLEND_UNLOCK(Unlock, "5Mutex6UnlockEv", 0)
KVBLEND_TRY_LOCK(TryLock, "5Mutex7TryLockEv", 0)
KVBLEND_LOCK(ReaderLock, "5Mutex10ReaderLockEv", __tsan_mutex_read_lock)
KVBLEND_UNLOCK(ReaderUnlock, "5Mutex12ReaderUnlockEv", __tsan_mutex_read_lock)
KVBLEND_TRY_LOCK(ReaderTryLock, "5Mutex13ReaderTryLockEv", __tsan_mutex_read_lock)

// The functions with a timeout are those with a deadline: the library's own call these, and would be
// annotated twice.

void Mutex::LockWhen(const Condition& condition) {
  KVBLEND_ORIGINAL("_ZN", "5Mutex8LockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  __tsan_mutex_pre_lock(this, 0);
  original(this, condition);
  __tsan_mutex_post_lock(this, 0, 0);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  KVBLEND_ORIGINAL("_ZN", "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*,
                   const Condition&, Time);
  __tsan_mutex_pre_lock(this, 0);
  const bool met = original(this, condition, deadline);
  __tsan_mutex_post_lock(this, 0, 0);
  return met;
}

void Mutex::Await(const Condition& condition) {
  KVBLEND_ORIGINAL("_ZN", "5Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  BeforeWait(this);
  original(this, condition);
  AfterWait(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  KVBLEND_ORIGINAL("_ZN", "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*,
                   const Condition&, Time);
  BeforeWait(this);
  const bool met = original(this, condition, deadline);
  AfterWait(this);
  return met;
}

// --- CondVar

void CondVar::Wait(Mutex* mutex) {
  KVBLEND_ORIGINAL("_ZN", "7CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  BeforeWait(mutex);
  original(this, mutex);
  AfterWait(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  KVBLEND_ORIGINAL("_ZN", "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*, Mutex*, Time);
  BeforeWait(mutex);
  const bool timed_out = original(this, mutex, deadline);
  AfterWait(mutex);
  return timed_out;
}

// --- Notification

void Notification::Notify() {
  KVBLEND_ORIGINAL("_ZN", "12Notification6NotifyEv", void, Notification*);
  __tsan_release(this);
  original(this);
}

void Notification::WaitForNotification() const {
  KVBLEND_ORIGINAL("_ZNK", "12Notification19WaitForNotificationEv", void, const Notification*);
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  KVBLEND_ORIGINAL("_ZNK", "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", bool,
                   const Notification*, Duration);
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  KVBLEND_ORIGINAL("_ZNK", "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE", bool,
                   const Notification*, Time);
  const bool notified = original(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

// --- Status

// Two threads may hold the same error, and the last one frees it. This is all that the library's own does,
// which decreases the count and frees in one call: nothing could be annotated in between.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

ABSL_NAMESPACE_END
}  // namespace absl
