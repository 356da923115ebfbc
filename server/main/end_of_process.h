// Ends the process where something that has to end does not.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <string_view>

#include "absl/time/time.h"

namespace kvblend::server {

/// Unless it is destroyed before, ends the process after `in`, in whole seconds and at least one, with exit
/// code 1 and a line on stderr. It needs no thread, so it works where none can be started. Not more than one
/// at a time.
class EndOfProcess {
 public:
  explicit EndOfProcess(absl::Duration in) {
    struct sigaction at_end = {};
    at_end.sa_handler = [](int /*signal*/) {
      constexpr std::string_view kText =
          "kvblend-server: calls did not end after they were cancelled: the process ends without them. Too few threads "
          "may be allowed to it (ulimit -u, pids.max, TasksMax)\n";
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
      _exit(1);
    };
    sigaction(SIGALRM, &at_end, &before_);
    const int64_t seconds = absl::ToInt64Seconds(in);
    alarm(seconds < 1 ? 1 : static_cast<unsigned>(seconds));
  }
  ~EndOfProcess() {
    alarm(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  EndOfProcess(const EndOfProcess&) = delete;
  EndOfProcess& operator=(const EndOfProcess&) = delete;

 private:
  struct sigaction before_ = {};
};

}  // namespace kvblend::server
