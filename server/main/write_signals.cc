#include "server/main/write_signals.h"

#include <signal.h>

namespace kvblend::server {

void IgnoreWriteSignals() {
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

}  // namespace kvblend::server
