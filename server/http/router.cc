#include "server/http/router.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kvblend::server {
namespace {

std::vector<std::string> Segments(std::string_view path) {
  return absl::StrSplit(absl::string_view(path.data(), path.size()), '/');
}

bool IsName(const std::string& segment) { return !segment.empty() && segment.front() == '{'; }

/// Decoded one by one: in a path "%2F" is no "/" (RFC 3986, 2.2), and proxies that let some paths through
/// take it for none.
std::vector<std::string> DecodedSegments(std::string_view path) {
  std::vector<std::string> segments = Segments(path);
  for (std::string& segment : segments) {
    std::string decoded;
    if (PercentDecode(segment, &decoded)) segment = std::move(decoded);
  }
  return segments;
}

/// Nothing when the path does not fit.
std::optional<std::map<std::string, std::string>> Match(const std::vector<std::string>& pattern,
                                                        const std::vector<std::string>& path) {
  std::map<std::string, std::string> values;
  if (path.size() < pattern.size()) return std::nullopt;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool last = i + 1 == pattern.size();
    if (!IsName(pattern[i])) {
      if (pattern[i] != path[i] || (last && path.size() != pattern.size())) return std::nullopt;
      continue;
    }
    const std::string value =
        last ? absl::StrJoin(path.begin() + static_cast<std::ptrdiff_t>(i), path.end(), "/") : path[i];
    if (value.empty()) return std::nullopt;
    values[pattern[i].substr(1, pattern[i].size() - 2)] = value;
  }
  return values;
}

}  // namespace

void Router::Add(std::string method, std::string_view pattern, HttpHandler handler, HandlerKind kind,
                 HttpGuard guard) {
  std::vector<std::string> segments = Segments(pattern);
  Handler added{.handle = std::move(handler), .kind = kind, .guard = std::move(guard)};
  for (Entry& entry : entries_) {
    if (entry.segments == segments) {
      entry.handlers[std::move(method)] = std::move(added);
      return;
    }
  }
  entries_.push_back({.segments = std::move(segments), .handlers = {}});
  entries_.back().handlers[std::move(method)] = std::move(added);
}

void Router::GuardPosts(const HttpGuard& guard) {
  for (Entry& entry : entries_) {
    const auto post = entry.handlers.find("POST");
    if (post != entry.handlers.end() && post->second.guard == nullptr) post->second.guard = guard;
  }
}

void Router::Wrap(const std::function<HttpHandler(HttpHandler)>& around) {
  for (Entry& entry : entries_) {
    for (auto& [method, handler] : entry.handlers) handler.handle = around(std::move(handler.handle));
  }
}

Router::Route Router::Find(std::string_view method, std::string_view path) const {
  const std::vector<std::string> segments = DecodedSegments(path);
  Route route;
  for (const Entry& entry : entries_) {
    auto values = Match(entry.segments, segments);
    if (!values.has_value()) continue;
    const auto handler = entry.handlers.find(std::string(method));
    if (handler != entry.handlers.end()) {
      return {.handler = &handler->second.handle,
              .guard = handler->second.guard == nullptr ? nullptr : &handler->second.guard,
              .kind = handler->second.kind,
              .path_values = *std::move(values),
              .allowed_methods = {}};
    }
    for (const auto& [allowed, unused] : entry.handlers) {
      route.allowed_methods.push_back(allowed);
      if (allowed == "GET") route.allowed_methods.push_back("HEAD");
    }
    return route;
  }
  return route;
}

std::set<HandlerKind> Router::Kinds() const {
  std::set<HandlerKind> kinds;
  for (const Entry& entry : entries_) {
    for (const auto& [method, handler] : entry.handlers) kinds.insert(handler.kind);
  }
  return kinds;
}

}  // namespace kvblend::server
