// The image's health check, for there is no shell in it that could ask: exit code 0 while the server accepts
// requests. Asks /readyz of the operators' HTTP, which is plain and needs no key, wherever gRPC and the HTTP
// API listen and whatever they speak.
//
//   container-health [FILE]    FILE has the server's command line; /proc/1/cmdline, as the container's first process is the server
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

constexpr timeval kPatience = {4, 0};  // less than the health check's own timeout

// --http-address of the server's command line, or its variable, or its default.
std::string OperatorsAddress(const char* command_line_path) {
  const std::string flag = "--http-address";
  std::ifstream words(command_line_path, std::ios::binary);
  std::string word;
  while (std::getline(words, word, '\0')) {
    if (word == flag && std::getline(words, word, '\0')) return word;
    if (word.rfind(flag + "=", 0) == 0) return word.substr(flag.size() + 1);
  }
  const char* variable = std::getenv("KVBLEND_HTTP_ADDRESS");
  return variable != nullptr && *variable != '\0' ? variable : "127.0.0.1:8090";
}

// Whether the answer on this connection begins with status 200.
bool SaysReady(int connection) {
  const std::string request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (send(connection, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return false;
  }
  const std::string ready = "HTTP/1.1 200 ";
  std::string answer;
  while (answer.size() < ready.size()) {
    char bytes[64];
    const ssize_t count = recv(connection, bytes, sizeof bytes, 0);
    if (count <= 0) return false;
    answer.append(bytes, static_cast<size_t>(count));
  }
  return answer.compare(0, ready.size(), ready) == 0;
}

bool IsReadyAt(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return false;
  bool ready = false;
  for (const addrinfo* one = found; one != nullptr && !ready; one = one->ai_next) {
    const int connection = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
    if (connection < 0) continue;
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    ready = connect(connection, one->ai_addr, one->ai_addrlen) == 0 && SaysReady(connection);
    close(connection);
  }
  freeaddrinfo(found);
  return ready;
}

// address: HOST:PORT or [IPV6]:PORT. To connect to 0.0.0.0 or [::], which servers listen on, leads to this
// host; and [::] is IPv4 where the machine has no IPv6.
bool IsReady(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return IsReadyAt(host, port) || (host == "::" && IsReadyAt("0.0.0.0", port));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string address = OperatorsAddress(argc > 1 ? argv[1] : "/proc/1/cmdline");
  if (IsReady(address)) return 0;
  std::fprintf(stderr, "http://%s/readyz does not say that the server is ready\n", address.c_str());
  return 1;
}
