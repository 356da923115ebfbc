#include "server/http/http_message.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace kvblend::server {
namespace {

// A value from outside may stand in a header (a model's name): it must not begin another.
void AppendHeader(std::string* head, absl::string_view name, absl::string_view value) {
  absl::StrAppend(head, name, ": ");
  for (const char c : value) {
    if (absl::ascii_isprint(c)) head->push_back(c);
  }
  absl::StrAppend(head, "\r\n");
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Names and values of a query, as forms and most clients write them: application/x-www-form-urlencoded of the
// URL Standard, section 5.1.
bool FormDecode(absl::string_view text, std::string* decoded) {
  return PercentDecode(absl::StrReplaceAll(text, {{"+", "%20"}}), decoded);
}

}  // namespace

const std::string* HttpRequest::FindHeader(std::string_view name) const {
  for (const auto& [header, value] : headers) {
    if (header == name) return &value;
  }
  return nullptr;
}

absl::string_view StatusName(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 302:
      return "Found";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool close, absl::Time now) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", StatusName(response.status), "\r\n");
  AppendHeader(&head, "Date", absl::FormatTime("%a, %d %b %E4Y %H:%M:%S GMT", now, absl::UTCTimeZone()));
  AppendHeader(&head, "Content-Type", response.content_type);
  if (framing == BodyFraming::kLength)
    AppendHeader(&head, "Content-Length", absl::StrCat(response.body.size()));
  if (framing == BodyFraming::kChunked) AppendHeader(&head, "Transfer-Encoding", "chunked");
  AppendHeader(&head, "Connection", close || framing == BodyFraming::kToClose ? "close" : "keep-alive");
  for (const auto& [name, value] : response.headers) AppendHeader(&head, name, value);
  absl::StrAppend(&head, "\r\n");
  return head;
}

std::string NewRequestId() {
  absl::BitGen random;
  return absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

HttpResponse WithRequestId(HttpResponse response, const std::string& id) {
  constexpr absl::string_view kName = "x-request-id";
  const bool has_one = std::any_of(response.headers.begin(), response.headers.end(), [&](const auto& header) {
    return absl::EqualsIgnoreCase(header.first, kName);
  });
  if (!has_one) response.headers.emplace_back(kName, id);
  return response;
}

std::string Chunk(std::string_view piece) {
  if (piece.empty()) return "";  // a chunk of no bytes would be the last
  return absl::StrCat(absl::Hex(piece.size()), "\r\n", absl::string_view(piece.data(), piece.size()), "\r\n");
}

bool PercentDecode(std::string_view text, std::string* decoded) {
  decoded->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded->push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return false;
    decoded->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

std::string QueryValue(std::string_view query, std::string_view name) {
  for (const absl::string_view setting : absl::StrSplit(absl::string_view(query.data(), query.size()), '&')) {
    const size_t equals = setting.find('=');
    std::string decoded;
    if (equals == absl::string_view::npos || !FormDecode(setting.substr(0, equals), &decoded) ||
        decoded != name) {
      continue;
    }
    return FormDecode(setting.substr(equals + 1), &decoded) ? decoded : "";
  }
  return "";
}

std::string QueryProblem(std::string_view query, std::initializer_list<absl::string_view> names) {
  constexpr size_t kShownBytes = 80;
  std::set<std::string> seen;
  for (const absl::string_view setting :
       absl::StrSplit(absl::string_view(query.data(), query.size()), '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    std::string name, value;
    if (!FormDecode(parts.first, &name) || !FormDecode(parts.second, &value)) {
      return "the query can't be decoded; allowed: %XX for any of its bytes";
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::StrCat(name.substr(0, kShownBytes), " is not known in a query here; allowed: ",
                          names.size() == 0 ? "none" : absl::StrJoin(names, ", "));
    }
    if (!seen.insert(name).second) return absl::StrCat(name, " comes twice; allowed: once");
  }
  return "";
}

}  // namespace kvblend::server
