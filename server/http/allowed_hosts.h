// Which names a server answers to. A page in a browser reaches a server on the same machine under a name of
// its own, which its DNS points there (DNS rebinding), and may then read what it answers: only the Host
// header tells.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvblend::server {

/// Immutable. Without names, any Host is allowed.
class AllowedHosts {
 public:
  AllowedHosts() = default;
  /// `names`, without a port, are allowed besides IP addresses and localhost, which no foreign DNS can
  /// redirect; "*": any. `flag` is the flag that gave them, for messages.
  AllowedHosts(std::string flag, std::vector<std::string> names);

  /// What is wrong with a Host header; empty: nothing.
  std::string Problem(std::string_view host) const;

 private:
  std::string flag_;
  std::optional<std::vector<std::string>> names_;  // in lower case
};

}  // namespace kvblend::server
