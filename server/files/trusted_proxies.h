// Whom a call comes from where proxies stand before the server: all that the connection tells is the proxy.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvblend::server {

/// The networks whose word is taken for whom they forward calls of. Constant; thread-safe.
class TrustedProxies {
 public:
  /// None: every peer is a client itself.
  TrustedProxies() = default;
  /// Networks such as 10.0.0.0/8 and fd00::/8, or addresses. kInvalidArgument naming `flag` and the one that
  /// is neither.
  static absl::StatusOr<TrustedProxies> Parse(const std::string& flag,
                                              const std::vector<std::string>& networks);

  bool empty() const { return networks_.empty(); }
  /// `peer_host` as gRPC names it ("ipv4:10.0.0.7", "ipv6:%5B::1%5D"), and so is the answer. `forwarded_for`:
  /// the values of X-Forwarded-For, joined by commas in their order. Each proxy appends whom it is called by,
  /// so from the end back to the first that is no trusted proxy all were written by trusted ones; what lies
  /// before may be anybody's invention. With an entry there that is no address, or none, it is `peer_host`.
  std::string ClientOf(const std::string& peer_host, absl::string_view forwarded_for) const;

 private:
  using Address = std::array<uint8_t, 16>;  // IPv4 as in ::ffff:0:0/96
  struct Network {
    Address address = {};
    int prefix_bits = 0;
  };

  static bool ParseAddress(absl::string_view text, Address& address);
  static std::string NameOf(const Address& address);
  bool Trusts(const Address& address) const;

  std::vector<Network> networks_;
};

}  // namespace kvblend::server
