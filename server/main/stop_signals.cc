#include "server/main/stop_signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

namespace kvblend::server {
namespace {

// Sent by the destructor to end the thread; otherwise unused.
constexpr int kEndThread = SIGUSR2;

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, kEndThread}) sigaddset(&signals, number);
  // A terminal that is closed. nohup(1) has it ignored, and then it stays so.
  struct sigaction hang_up = {};
  if (sigaction(SIGHUP, nullptr, &hang_up) != 0 || hang_up.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  return signals;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Run(); });
}

StopSignals::~StopSignals() {
  pthread_kill(thread_.native_handle(), kEndThread);
  thread_.join();
}

void StopSignals::Run() {
  const sigset_t signals = Signals();
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (number == kEndThread) return;
    if (arrived_.HasBeenNotified()) _exit(128 + number);
    if (end_at_once_) _exit(0);
    arrived_.Notify();
  }
}

}  // namespace kvblend::server
