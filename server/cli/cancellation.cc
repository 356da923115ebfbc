#include "server/cli/cancellation.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace kvblend::server::cli {
namespace {

// The write end of the pipe that carries signals out of the handler; a handler can reach only globals.
volatile std::sig_atomic_t signal_pipe = -1;

constexpr char kSignalled = 's';
constexpr char kStop = 'q';

extern "C" void ForwardSignal(int /*signal*/) {
  const int saved_errno = errno;
  const ssize_t ignored = write(signal_pipe, &kSignalled, 1);
  (void)ignored;
  errno = saved_errno;
}

}  // namespace

Cancellation::Listener::Listener(Cancellation& cancellation, std::function<void()> callback)
    : cancellation_(cancellation) {
  absl::MutexLock lock(&cancellation_.mutex_);
  id_ = cancellation_.next_id_++;
  if (cancellation_.requested_) {
    callback();
  } else {
    cancellation_.callbacks_.emplace(id_, std::move(callback));
  }
}

Cancellation::Listener::~Listener() {
  absl::MutexLock lock(&cancellation_.mutex_);
  cancellation_.callbacks_.erase(id_);
}

void Cancellation::Request() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(requested_, true)) return;
  for (const auto& [id, callback] : callbacks_) callback();
  callbacks_.clear();
}

bool Cancellation::requested() const {
  absl::MutexLock lock(&mutex_);
  return requested_;
}

CancelOnSignal::CancelOnSignal(Cancellation& cancellation) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;  // without a pipe signals keep their default action
  read_end_ = ends[0];
  signal_pipe = ends[1];
  watcher_ = std::thread([this, &cancellation] {
    char what = kStop;
    while (read(read_end_, &what, 1) < 0 && errno == EINTR) {
    }
    if (what == kSignalled) cancellation.Request();
  });
  struct sigaction action = {};
  action.sa_handler = ForwardSignal;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // the second signal meets the default action
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CancelOnSignal::~CancelOnSignal() {
  if (read_end_ < 0) return;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const ssize_t ignored = write(signal_pipe, &kStop, 1);
  (void)ignored;
  watcher_.join();
  close(signal_pipe);
  close(read_end_);
  signal_pipe = -1;
}

}  // namespace kvblend::server::cli
