#include "server/http/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server {

absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &parsed.port) &&
      parsed.port >= 0 && parsed.port <= 65535) {
    parsed.host = text.substr(0, colon);
    const bool bracketed = parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
    if (bracketed) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (bracketed || parsed.host.find_first_of(":[]") == std::string::npos) return parsed;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", text,
                   "'; allowed: HOST:PORT or [IPV6]:PORT with a port from 0 (any free one) to 65535"));
}

}  // namespace kvblend::server
