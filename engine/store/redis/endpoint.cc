#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

std::string Endpoint::ToString() const {
  if (host.find(':') != std::string::npos) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

namespace {

/// What stands before an '@' is a user's name or password, as URLs have it, and nothing for a log.
absl::Status NoAddress(std::string_view text) {
  const size_t at = text.rfind('@');
  const std::string shown =
      at == std::string_view::npos ? std::string(text) : absl::StrCat("...", std::string(text.substr(at)));
  return absl::InvalidArgumentError(
      absl::StrCat("'", shown.substr(0, 256),
                   "' is no address of a Redis node; allowed: HOST:PORT or [IPV6]:PORT, with a "
                   "port of 1 to 65535",
                   at == std::string_view::npos ? "" : ", without user and password"));
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  const auto invalid = [&] { return NoAddress(text); };
  if (text.find('@') != std::string_view::npos) return invalid();
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return invalid();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return invalid();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return invalid();
  }
  // What a host may be is the resolver's to say, but nothing unprintable gets into logs.
  for (const char c : host) {
    if (c <= ' ' || c > '~' || c == '[' || c == ']') return invalid();
  }
  uint32_t number = 0;
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &number) || number < 1 ||
      number > 65535) {
    return invalid();
  }
  return Endpoint{std::string(host), static_cast<uint16_t>(number)};
}

absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(std::string_view text) {
  // Before it is split: a password may have commas.
  if (text.find('@') != std::string_view::npos) return NoAddress(text);
  std::vector<Endpoint> endpoints;
  const std::string all(text);
  for (const absl::string_view part : absl::StrSplit(all, ',')) {
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint({part.data(), part.size()});
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back(*std::move(endpoint));
  }
  return endpoints;
}

}  // namespace kvblend::store::redis
