// Calls that compute in the thread that answers them, as splitting a document does, beside answers that are
// being computed.
#pragma once

#include <sys/resource.h>

#include <algorithm>

namespace kvblend::server {

/// To be called by threads that do nothing else: from then on a processor that others have use for is theirs
/// for nine tenths of the time. Eight documents split at once made answers take ten times as long on two
/// processors.
inline void YieldToAnswers() {
  static constexpr int kNice = 10, kNicest = 19;
  // On Linux a priority belongs to a thread. It can't be raised again, so it is lowered once.
  thread_local const int lowered = [] {
    return setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kNice, kNicest));
  }();
  static_cast<void>(lowered);
}

}  // namespace kvblend::server
