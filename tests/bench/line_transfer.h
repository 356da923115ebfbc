// How far apart the caches of two processors are.
#pragma once

namespace kvblend {

/// Seconds that a line of memory takes from one processor's cache to another's: two threads on this process'
/// first two processors answer each other some ten thousand times. 0 where there is only one, or threads
/// can't be held to theirs.
double LineTransferSeconds();

}  // namespace kvblend
