#include "server/files/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

// With port 0 the system chooses for the first address, and the others may have that one in use.
constexpr int kTriesForAPort = 16;

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr_in6& v6() const { return reinterpret_cast<const sockaddr_in6&>(storage); }
  bool is_v6() const { return storage.ss_family == AF_INET6; }
  bool is_v6_wildcard() const { return is_v6() && IN6_IS_ADDR_UNSPECIFIED(&v6().sin6_addr); }
  bool operator==(const Address& other) const {
    return size == other.size && memcmp(&storage, &other.storage, size) == 0;
  }
  void SetPort(int port) {
    const uint16_t bytes = htons(static_cast<uint16_t>(port));
    if (is_v6()) {
      reinterpret_cast<sockaddr_in6&>(storage).sin6_port = bytes;
    } else {
      reinterpret_cast<sockaddr_in&>(storage).sin_port = bytes;
    }
  }
  std::string Text() const {
    char text[NI_MAXHOST] = "";
    getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
    return text;
  }
};

/// Appends those of `host`, but none twice: files of hosts may name one in several lines.
absl::Status Resolve(const std::string& host, std::vector<Address>& addresses) {
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat(host, ": ", gai_strerror(error)));
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    Address address;
    memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  }
  freeaddrinfo(found);
  return absl::OkStatus();
}

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

int PortOf(int fd) {
  Address address;
  address.size = sizeof address.storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return ntohs(address.is_v6() ? address.v6().sin6_port
                               : reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
}

/// Whether the machine lacks an address, or all of its kind, so that nobody can have it.
bool IsLacking(int error) {
  return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || error == EADDRNOTAVAIL;
}

/// The errno of what failed; 0: it listens.
int Listen(const Address& address, Descriptor& made) {
  Descriptor opened(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (opened.get() < 0) return errno;
  // A server may start before its predecessor's connections are over. A running server keeps its port.
  SetOption(opened.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(opened.get(), IPPROTO_TCP, TCP_NODELAY, 1);  // connections inherit it
  if (address.is_v6()) {
    const bool takes_v4 = address.is_v6_wildcard() || IN6_IS_ADDR_V4MAPPED(&address.v6().sin6_addr);
    SetOption(opened.get(), IPPROTO_IPV6, IPV6_V6ONLY, takes_v4 ? 0 : 1);
  }
  if (bind(opened.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      listen(opened.get(), SOMAXCONN) != 0) {
    return errno;
  }
  made = std::move(opened);
  return 0;
}

/// One try. `error`: the errno of a failure.
absl::StatusOr<ListeningSockets> TryAll(std::vector<Address> addresses, int port, int& error) {
  ListeningSockets made;
  made.port = port;
  std::string lacking;
  for (Address& address : addresses) {
    address.SetPort(made.port);
    Descriptor listening;
    error = Listen(address, listening);
    if (error != 0) {
      const std::string why = absl::StrCat(address.Text(), " port ", made.port, ": ", strerror(error));
      if (!IsLacking(error)) return absl::UnavailableError(why);
      absl::StrAppend(&lacking, lacking.empty() ? "" : "; ", why);
      continue;
    }
    made.port = PortOf(listening.get());
    made.sockets.push_back(std::move(listening));
  }
  if (made.sockets.empty()) return absl::UnavailableError(lacking);
  return made;
}

/// `error` as above, of the last try.
absl::StatusOr<ListeningSockets> ListenAt(const std::vector<Address>& addresses, int port, int& error) {
  for (int tries = 1;; ++tries) {
    absl::StatusOr<ListeningSockets> made = TryAll(addresses, port, error);
    if (made.ok() || port != 0 || error != EADDRINUSE || tries == kTriesForAPort) return made;
  }
}

}  // namespace

absl::StatusOr<ListeningSockets> ListenOn(const std::string& host, int port) {
  return ListenOnAll({host}, port);
}

absl::StatusOr<ListeningSockets> ListenOnAll(const std::vector<std::string>& hosts, int port) {
  std::vector<Address> addresses;
  for (const std::string& host : hosts) {
    if (absl::Status status = Resolve(host, addresses); !status.ok()) return status;
  }
  int error = 0;
  absl::StatusOr<ListeningSockets> made = ListenAt(addresses, port, error);
  // A socket of IPv6's wildcard serves IPv4 too; where the machine has no IPv6, IPv4's has to do.
  const bool is_wildcard = addresses.size() == 1 && addresses.front().is_v6_wildcard();
  return is_wildcard && !made.ok() && IsLacking(error) ? ListenOn("0.0.0.0", port) : std::move(made);
}

}  // namespace kvblend::server
