#include "server/http/allowed_hosts.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblend::server {
namespace {

constexpr char kAny[] = "*";

/// The host without its port, in lower case.
std::string NameOf(std::string_view host) {
  // An IPv6 address has colons of its own, in brackets.
  const size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos) {
    host = host.substr(0, colon);
  }
  std::string name = absl::AsciiStrToLower(absl::string_view(host.data(), host.size()));
  if (name.ends_with('.')) name.pop_back();  // the root of DNS
  return name;
}

bool IsAddress(const std::string& name) {
  in6_addr address;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') {
    return inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, name.c_str(), &address) == 1;
}

/// Names that are this machine everywhere (RFC 6761, 6.3).
bool IsLocalhost(const std::string& name) { return name == "localhost" || name.ends_with(".localhost"); }

}  // namespace

AllowedHosts::AllowedHosts(std::string flag, std::vector<std::string> names) : flag_(std::move(flag)) {
  for (std::string& name : names) name = NameOf(name);
  if (std::find(names.begin(), names.end(), kAny) == names.end()) names_ = std::move(names);
}

std::string AllowedHosts::Problem(std::string_view host) const {
  if (!names_.has_value()) return "";
  const std::string name = NameOf(host);
  if (name.empty() || IsAddress(name) || IsLocalhost(name)) return "";
  if (std::find(names_->begin(), names_->end(), name) != names_->end()) return "";
  return absl::StrCat("Host is '", absl::string_view(host.data(), host.size()),
                      "'; allowed, as this server has no keys: localhost, IP addresses, and the names of ",
                      flag_, " (", names_->empty() ? "none" : absl::StrJoin(*names_, ", "), ")");
}

}  // namespace kvblend::server
