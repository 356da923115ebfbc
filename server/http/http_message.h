// What handlers get and give: requests and responses as plain data.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvblend::server {

struct HttpRequest {
  std::string method;  // "GET"; HEAD arrives as GET, and its answer goes without the body
  std::string path;    // as sent, without the query: "/v1/models"
  std::string query;   // as sent, without the '?'
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  std::map<std::string, std::string> path_values;  // what stood in place of a pattern's "{name}"
  // "ipv4:10.0.0.7:51234", as gRPC writes it; where a trusted proxy forwards the request, as peer_host.
  std::string peer;
  std::string peer_host;  // "ipv4:10.0.0.7", "ipv6:%5B::1%5D"; the client's that the proxy tells of
  std::string turn;       // as a guard says, else peer_host: those with the same one take turns with others
  std::string id;         // the answer's header x-request-id, unless the handler gives it another

  /// The first header of that name (in lower case), or null.
  const std::string* FindHeader(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // more of them
};

/// "Not Found" for 404; "Unknown" for what has no name.
absl::string_view StatusName(int status);

/// How the body's length is told.
enum class BodyFraming : uint8_t {
  kLength,   // Content-Length
  kChunked,  // in chunks
  kToClose,  // the connection ends with it, for HTTP/1.0
};

/// The status line and headers, the empty line included, with the time as Date. Bytes that no header may hold
/// are left out.
std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool close,
                         absl::Time now = absl::Now());

/// "req-5f2c...": random.
std::string NewRequestId();

/// Adds the header x-request-id with this id, unless the response has one.
HttpResponse WithRequestId(HttpResponse response, const std::string& id = NewRequestId());

/// One chunk of a body in chunks; none for an empty `piece`.
std::string Chunk(std::string_view piece);
inline constexpr char kLastChunk[] = "0\r\n\r\n";

/// Decodes %XX. False if a '%' is not followed by two hexadecimal digits.
bool PercentDecode(std::string_view text, std::string* decoded);

/// The value of `name` in a query such as "a=1&b=2", decoded, '+' being a space; empty when it is not there
/// or can't be decoded.
std::string QueryValue(std::string_view query, std::string_view name);

/// What is wrong with a query of which these names are known: one that is not among them, that comes twice,
/// or whose value can't be decoded. Empty: nothing.
std::string QueryProblem(std::string_view query, std::initializer_list<absl::string_view> names);

}  // namespace kvblend::server
