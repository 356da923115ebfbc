// What the lines of the log look like.
#pragma once

#include <memory>
#include <string>

#include "spdlog/formatter.h"

namespace kvblend::server {

/// One JSON object per line: "time" (RFC 3339, UTC, milliseconds), "level", and "message". With `members` the message is
/// itself the members of an object (CallLog writes such), which stand in its place.
std::unique_ptr<spdlog::formatter> JsonLines(bool members);

/// Text lines: time, level and message. Control characters of the message stand as \xNN: what a client has sent may be a part of
/// it, and must not begin a line of its own or speak to a terminal.
std::unique_ptr<spdlog::formatter> TextLines();

/// Sends the log to stderr from `level` on, as text, or as JSON. To be called once.
void SetUpLog(const std::string& level, bool json);

}  // namespace kvblend::server
