// Which handler answers which path.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/responder.h"

namespace kvblend::server {

/// What a handler does on its thread. Each kind has threads of its own, so that what takes long holds up only
/// its like.
enum class HandlerKind : uint8_t {
  kQuick,   // answers from what is in memory, or nearly so
  kStream,  // begins an answer that others finish: its text is tokenized
  kLong,    // splits a document
  kTiers,   // asks tiers for many chunks, and waits for them
};

/// Filled before the server starts; thread-safe from then on.
class Router {
 public:
  /// `pattern` is a path such as "/v1/models/{id}": the name in braces stands for one or more segments at the
  /// end, or for one in the middle. The first pattern that fits a path is the one, and methods that it lacks
  /// get 405. POST takes bodies, which must be JSON; the other methods take none.
  void Add(std::string method, std::string_view pattern, HttpHandler handler,
           HandlerKind kind = HandlerKind::kQuick, HttpGuard guard = nullptr);

  /// Puts a guard before every POST that was added without one.
  void GuardPosts(const HttpGuard& guard);

  /// Puts something around all handlers that were added.
  void Wrap(const std::function<HttpHandler(HttpHandler)>& around);

  struct Route {
    const HttpHandler* handler = nullptr;
    const HttpGuard* guard = nullptr;  // null: none
    HandlerKind kind = HandlerKind::kQuick;
    std::map<std::string, std::string> path_values;
    std::vector<std::string>
        allowed_methods;  // of the path, if there is no handler; none: there is no such path
  };
  Route Find(std::string_view method, std::string_view path) const;
  /// The kinds of all handlers.
  std::set<HandlerKind> Kinds() const;

 private:
  struct Handler {
    HttpHandler handle;
    HandlerKind kind;
    HttpGuard guard;
  };
  struct Entry {
    std::vector<std::string> segments;
    std::map<std::string, Handler> handlers;  // by method
  };
  std::vector<Entry> entries_;
};

}  // namespace kvblend::server
