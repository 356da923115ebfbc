// The signals by which the system ends a process that writes what can't be written.
#pragma once

namespace kvblend::server {

/// From now on such a write fails, and the process goes on: where whoever read the log, or a connection, has
/// gone (SIGPIPE, EPIPE), and behind the largest size that the system allows a file (SIGXFSZ, EFBIG). To be
/// called at the very start of main. Programs that this one starts inherit it, as long as they do not set the
/// signals themselves; it starts none.
void IgnoreWriteSignals();

}  // namespace kvblend::server
