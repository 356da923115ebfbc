// The format of log lines.
#pragma once

#include <memory>
#include <string>

#include "spdlog/formatter.h"

namespace kvblend::server {

/// One JSON object per line: "time" (RFC 3339, UTC, milliseconds), "level", and "message". With `members` the
/// message is itself a list of members (as CallLog writes it), which are put in place of "message".
std::unique_ptr<spdlog::formatter> JsonLines(bool members);

/// Text lines: time, level and message. Control characters in the message are written as \xNN, so that text
/// from a client can neither begin a line nor control a terminal.
std::unique_ptr<spdlog::formatter> TextLines();

/// Sends log messages of `level` and above to stderr, as text or as JSON. Must be called once.
void SetUpLog(const std::string& level, bool json);

}  // namespace kvblend::server
