// Bytes of a connection -> HttpRequest. The parsing is Boost.Beast's; no header of Beast is included here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace kvblend::server {

struct ParserLimits {
  int64_t max_header_bytes = 16 << 10;  // request line and headers; at most 2^31
  int64_t max_body_bytes = 4096;
};

/// Parses one request; for each one a new parser. Not thread-safe.
class RequestParser {
 public:
  explicit RequestParser(const ParserLimits& limits);
  ~RequestParser();

  /// What is wrong with the request, as an HTTP status and a line that says why.
  struct Problem {
    int status = 0;  // 0: nothing
    std::string message;
  };

  /// Consumes what it can of `bytes` (a later call gets the rest again, with more behind it) and stops behind
  /// the headers, and behind the end of the request.
  size_t Parse(std::string_view bytes, Problem* problem);

  bool header_done() const;
  bool done() const;
  /// From the time that the headers are there.
  bool has_body() const;    // or may have one, in chunks
  bool keep_alive() const;  // as the client asks
  bool is_http_1_0() const;
  bool tells_body_length() const;  // Content-Length or chunked
  size_t body_bytes() const;       // so far
  const std::string& target() const;
  HttpRequest& request();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblend::server
