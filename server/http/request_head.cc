#include "server/http/request_head.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

using Problem = RequestParser::Problem;

int64_t CountHeaders(const HttpRequest& request, std::string_view name) {
  return std::count_if(request.headers.begin(), request.headers.end(),
                       [&](const auto& header) { return header.first == name; });
}

Problem CheckExpect(const HttpRequest& request) {
  for (const auto& [name, value] : request.headers) {
    if (name == "expect" && !absl::EqualsIgnoreCase(value, "100-continue")) {
      return {417, absl::StrCat("Expect is '", value, "'; allowed: absent, or 100-continue")};
    }
  }
  return {};
}

Problem CheckJsonBody(const RequestParser& parser, const HttpRequest& request) {
  if (!parser.tells_body_length()) return {411, "a POST needs a body, with Content-Length or in chunks"};
  const std::string* type = request.FindHeader("content-type");
  const std::string given = type == nullptr ? "absent" : absl::StrCat("'", *type, "'");
  if (type == nullptr ||
      !absl::EqualsIgnoreCase(type->substr(0, type->find_first_of("; ")), "application/json")) {
    return {415, absl::StrCat("Content-Type is ", given, "; allowed: application/json")};
  }
  const std::string* encoding = request.FindHeader("content-encoding");
  if (encoding != nullptr && !absl::EqualsIgnoreCase(*encoding, "identity")) {
    return {415, absl::StrCat("Content-Encoding is '", *encoding, "'; allowed: none")};
  }
  return {};
}

}  // namespace

Problem CheckSingleHeaders(RequestParser& parser, const AllowedHosts& allowed_hosts) {
  const HttpRequest& request = parser.request();
  const int64_t num_hosts = CountHeaders(request, "host");
  if (num_hosts > 1 || (num_hosts == 0 && !parser.is_http_1_0())) {
    return {400, absl::StrCat("the request has ", num_hosts, " Host headers; allowed: one")};
  }
  if (num_hosts == 1) {
    const std::string problem = allowed_hosts.Problem(*request.FindHeader("host"));
    if (!problem.empty()) return {421, problem};
  }
  // A proxy before this server may read another of them than this server does.
  if (const int64_t num_keys = CountHeaders(request, "authorization"); num_keys > 1) {
    return {400, absl::StrCat("the request has ", num_keys, " Authorization headers; allowed: one")};
  }
  return {};
}

Problem CheckTransferEncoding(RequestParser& parser) {
  const HttpRequest& request = parser.request();
  const std::string* coding = request.FindHeader("transfer-encoding");
  if (coding == nullptr) return {};
  // A proxy that understands another coding would see the body end elsewhere.
  if (CountHeaders(request, "transfer-encoding") > 1 || !absl::EqualsIgnoreCase(*coding, "chunked")) {
    return {501, absl::StrCat("Transfer-Encoding is '", *coding, "'; implemented: one header, 'chunked'")};
  }
  // A proxy that knows HTTP/1.0 alone would take the body for the next request (RFC 9112, 6.1).
  if (parser.is_http_1_0()) {
    return {400, "the request is of HTTP/1.0 and has a Transfer-Encoding; allowed: Content-Length"};
  }
  return {};
}

Problem TakeTarget(RequestParser& parser) {
  HttpRequest& request = parser.request();
  std::string_view target = parser.target();
  for (const std::string_view scheme : {"http://", "https://"}) {  // as proxies write it
    if (!absl::StartsWithIgnoreCase(parser.target(), absl::string_view(scheme.data(), scheme.size())))
      continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    request.path = "/";  // where there is none (RFC 9110, 4.2.3)
  }
  const size_t query = target.find('?');
  if (query != std::string_view::npos) request.query = std::string(target.substr(query + 1));
  target = target.substr(0, query);
  if (!target.empty()) request.path = std::string(target);
  std::string decoded;
  if (request.path.empty() || request.path.front() != '/' || !PercentDecode(request.path, &decoded)) {
    return {400, "the request's target is no path"};
  }
  return {};
}

Problem CheckExpectAndBody(RequestParser& parser) {
  const HttpRequest& request = parser.request();
  if (Problem problem = CheckExpect(request); problem.status != 0) return problem;
  if (request.method == "POST") return CheckJsonBody(parser, request);
  if (parser.has_body()) return {400, absl::StrCat(request.method, " has a body; allowed: none")};
  return {};
}

}  // namespace kvblend::server
