#include "server/files/trusted_proxies.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvblend::server {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr size_t kMappedBytes = sizeof kMappedPrefix;
constexpr int kMappedBits = 96;

bool IsMapped(const uint8_t* address) { return memcmp(address, kMappedPrefix, kMappedBytes) == 0; }

bool IsPort(absl::string_view text) {
  return !text.empty() && text.size() <= 5 && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

/// An entry of X-Forwarded-For without the port that some proxies write, and without brackets.
absl::string_view WithoutPort(absl::string_view entry) {
  if (absl::ConsumePrefix(&entry, "[")) {
    const size_t end = entry.find(']');
    if (end == absl::string_view::npos) return {};
    const absl::string_view rest = entry.substr(end + 1);
    return rest.empty() || (rest.front() == ':' && IsPort(rest.substr(1))) ? entry.substr(0, end)
                                                                           : absl::string_view();
  }
  const size_t colon = entry.find(':');
  // More than one colon is IPv6, which has its port behind brackets alone.
  if (colon == absl::string_view::npos || colon != entry.rfind(':')) return entry;
  return IsPort(entry.substr(colon + 1)) ? entry.substr(0, colon) : absl::string_view();
}

}  // namespace

bool TrustedProxies::ParseAddress(absl::string_view text, Address& address) {
  const std::string terminated(text);
  std::copy(std::begin(kMappedPrefix), std::end(kMappedPrefix), address.begin());
  if (inet_pton(AF_INET, terminated.c_str(), address.data() + kMappedBytes) == 1) return true;
  return inet_pton(AF_INET6, terminated.c_str(), address.data()) == 1;
}

std::string TrustedProxies::NameOf(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (IsMapped(address.data())) {
    inet_ntop(AF_INET, address.data() + kMappedBytes, text, sizeof text);
    return absl::StrCat("ipv4:", text);
  }
  inet_ntop(AF_INET6, address.data(), text, sizeof text);
  return absl::StrCat("ipv6:%5B", text, "%5D");
}

absl::StatusOr<TrustedProxies> TrustedProxies::Parse(const std::string& flag,
                                                     const std::vector<std::string>& networks) {
  TrustedProxies proxies;
  for (const std::string& text : networks) {
    const size_t slash = text.find('/');
    Network network;
    bool is_good = ParseAddress(text.substr(0, slash), network.address);
    const bool is_v4 = text.find(':') == std::string::npos;
    network.prefix_bits = 8 * static_cast<int>(network.address.size());
    if (is_good && slash != std::string::npos) {
      const std::string bits = text.substr(slash + 1);
      is_good = IsPort(bits) && absl::SimpleAtoi(bits, &network.prefix_bits) &&
                network.prefix_bits <= (is_v4 ? 32 : 128);
      if (is_v4) network.prefix_bits += kMappedBits;
    }
    if (!is_good) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, " has '", text, "'; allowed: addresses and networks such as 10.0.0.0/8 or fd00::/8"));
    }
    proxies.networks_.push_back(network);
  }
  return proxies;
}

bool TrustedProxies::Trusts(const Address& address) const {
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    const size_t whole_bytes = static_cast<size_t>(network.prefix_bits / 8);
    const int more_bits = network.prefix_bits % 8;
    if (!std::equal(address.begin(), address.begin() + whole_bytes, network.address.begin())) return false;
    return more_bits == 0 || (address[whole_bytes] ^ network.address[whole_bytes]) >> (8 - more_bits) == 0;
  });
}

std::string TrustedProxies::ClientOf(const std::string& peer_host, absl::string_view forwarded_for) const {
  if (networks_.empty() || forwarded_for.empty()) return peer_host;
  absl::string_view peer = peer_host;
  Address address;
  if (absl::ConsumePrefix(&peer, "ipv6:")) {
    if (!absl::ConsumePrefix(&peer, "%5B")) absl::ConsumePrefix(&peer, "[");
    peer = peer.substr(0, peer.find_first_of("%]"));  // a scope is behind "%25"
  } else if (!absl::ConsumePrefix(&peer, "ipv4:")) {
    return peer_host;
  }
  if (!ParseAddress(peer, address) || !Trusts(address)) return peer_host;
  for (absl::string_view rest = forwarded_for;;) {
    const size_t comma = rest.rfind(',');
    const absl::string_view entry =
        absl::StripAsciiWhitespace(comma == absl::string_view::npos ? rest : rest.substr(comma + 1));
    if (!ParseAddress(WithoutPort(entry), address)) return peer_host;
    if (!Trusts(address)) return NameOf(address);
    if (comma == absl::string_view::npos) return peer_host;
    rest = rest.substr(0, comma);
  }
}

}  // namespace kvblend::server
