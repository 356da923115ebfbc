// How many files the process may have open: each connection of a listener is one.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>

namespace kvblend::server {

/// Asks the system for room for so many open files beside those that were asked for before. Shells start
/// programs with few of them, and let them ask for more, up to a limit of their own. Thread-safe.
void AllowMoreFiles(rlim_t files);

/// So many files may be open, fewer than AllowMoreFiles has asked for in all.
struct FileShortage {
  int64_t allowed = 0;
  int64_t wanted = 0;
};
/// Nullopt: there is none. Thread-safe.
std::optional<FileShortage> ShortageOfFiles();

/// Whether a connection that has just been given this descriptor leaves enough of them for what has to go on
/// when there are very many connections: health pages, metrics, chunks on disk, the log. Where it does not,
/// the caller closes it. Asks the system for no more than the limit: the lowest number that is free is given
/// out first, so all below `descriptor` are in use. Thread-safe.
bool LeavesSpareFiles(int descriptor);

}  // namespace kvblend::server
