#include "server/http/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using BoostView = boost::beast::string_view;

std::string ToString(BoostView text) { return std::string(text.data(), text.size()); }

// Whether a request line that could not be parsed ends with a version of HTTP that is not known here, rather
// than with a bare line feed or no version at all.
bool NamesAnotherVersion(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const size_t version = line.rfind(" HTTP/");
  if (version == std::string_view::npos || !line.ends_with('\r')) return false;
  const std::string_view number = line.substr(version + 6, line.size() - version - 7);
  return !number.empty() && number.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

struct RequestParser::Impl : http::basic_parser<true> {
  explicit Impl(const ParserLimits& parser_limits) : limits(parser_limits) {
    header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    body_limit(static_cast<uint64_t>(limits.max_body_bytes));
  }

  void on_request_impl(http::verb, BoostView method, BoostView where, int http_version,
                       error_code& error) override {
    error = {};
    request.method = ToString(method);
    target = ToString(where);
    version = http_version;
  }
  void on_response_impl(int, BoostView, int, error_code& error) override { error = {}; }
  void on_field_impl(http::field, BoostView name, BoostView value, error_code& error) override {
    error = {};
    // Trailers are left out: a proxy before this server has checked the headers alone (RFC 9110, 6.5.1).
    if (is_header_done()) return;
    request.headers.emplace_back(absl::AsciiStrToLower(ToString(name)), ToString(value));
  }
  void on_header_impl(error_code& error) override { error = {}; }
  // Memory is taken as the body comes, not as it is announced.
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code& error) override { error = {}; }
  size_t on_body_impl(BoostView piece, error_code& error) override { return Append(piece, error); }
  void on_chunk_header_impl(uint64_t, BoostView, error_code& error) override { error = {}; }
  size_t on_chunk_body_impl(uint64_t, BoostView piece, error_code& error) override {
    return Append(piece, error);
  }
  void on_finish_impl(error_code& error) override { error = {}; }

  size_t Append(BoostView piece, error_code& error) {
    error = {};
    if (static_cast<int64_t>(request.body.size() + piece.size()) > limits.max_body_bytes) {
      error = http::error::body_limit;
      return 0;
    }
    request.body.append(piece.data(), piece.size());
    return piece.size();
  }

  const ParserLimits limits;
  HttpRequest request;
  std::string target;
  int version = 11;
};

RequestParser::RequestParser(const ParserLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::Parse(std::string_view bytes, Problem* problem) {
  size_t consumed = 0;
  while (consumed < bytes.size() && !impl_->is_done()) {
    const bool in_header = !impl_->is_header_done();
    error_code error;
    const std::string_view rest = bytes.substr(consumed);
    const size_t used = impl_->put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    consumed += used;
    if (error == http::error::need_more) break;
    if (error == http::error::header_limit) {
      *problem = {431, absl::StrCat("the request line and headers are longer than ",
                                    impl_->limits.max_header_bytes, " bytes")};
    } else if (error == http::error::body_limit) {
      *problem = {413,
                  absl::StrCat("the request's body is longer than ", impl_->limits.max_body_bytes, " bytes")};
    } else if (error == http::error::bad_version && NamesAnotherVersion(rest)) {
      *problem = {505, "the request is not of HTTP/1.1 or HTTP/1.0"};
    } else if (error) {
      *problem = {400, absl::StrCat("the request is no HTTP: ", error.message())};
    }
    if (error || (in_header && impl_->is_header_done())) break;
    if (used == 0) break;
  }
  return consumed;
}

bool RequestParser::header_done() const { return impl_->is_header_done(); }
bool RequestParser::done() const { return impl_->is_done(); }
bool RequestParser::has_body() const { return !impl_->is_done(); }
bool RequestParser::keep_alive() const { return impl_->keep_alive(); }
bool RequestParser::is_http_1_0() const { return impl_->version < 11; }
bool RequestParser::tells_body_length() const {
  return impl_->chunked() || impl_->request.FindHeader("content-length") != nullptr;
}
size_t RequestParser::body_bytes() const { return impl_->request.body.size(); }
const std::string& RequestParser::target() const { return impl_->target; }
HttpRequest& RequestParser::request() { return impl_->request; }

}  // namespace kvblend::server
