// What the connections of one server share. For this room's sources only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/http/asio.h"
#include "server/http/http_server.h"

namespace kvblend::server {

class Connection;

/// Thread-safe. Owned by the server and by each connection: an answer may be held longer than the server.
struct ServerCore {
  ServerCore(HttpServerOptions server_options, Router server_router, ErrorPage page)
      : options(std::move(server_options)),
        router(std::move(server_router)),
        error_page(std::move(page)),
        io(options.num_threads),
        handlers(options.num_handler_threads) {}

  const HttpServerOptions options;
  const Router router;
  const ErrorPage error_page;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopped{false};  // nothing is run any more, so nothing may be posted
  std::atomic<int64_t> pending_body_bytes{0};

  absl::Mutex mutex;
  // Those that are open.
  absl::flat_hash_map<Connection*, std::weak_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);

  asio::io_context io;
  asio::thread_pool handlers;
};

}  // namespace kvblend::server
