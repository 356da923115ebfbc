// What the connections of one server share. For this room's sources only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/once_a_minute.h"
#include "base/turn_queue.h"
#include "server/http/asio.h"
#include "server/http/http_server.h"

namespace kvblend::server {

class Connection;

/// Bytes of a body in memory, among `pending` for as long as this object lives.
class CountedBody {
 public:
  explicit CountedBody(std::shared_ptr<std::atomic<int64_t>> pending) : pending_(std::move(pending)) {}
  ~CountedBody() { Set(0); }
  CountedBody(const CountedBody&) = delete;
  CountedBody& operator=(const CountedBody&) = delete;

  void Set(int64_t bytes) { *pending_ += bytes - std::exchange(bytes_, bytes); }
  int64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<std::atomic<int64_t>> pending_;
  int64_t bytes_ = 0;
};

/// The threads of one kind of handler. Thread-safe.
class HandlerThreads {
 public:
  /// The process ends where a thread can't be started (base/out_of_threads.h): noexcept, so that it is not
  /// unwound first, which would destroy the threads that run.
  explicit HandlerThreads(int num_threads) noexcept : work_(asio::make_work_guard(io_)) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }
  ~HandlerThreads() { Join(); }

  /// `handle` is called in one of the threads: in the order of those with the same `turn`, which take turns
  /// with others. So nobody waits for more than one request of each of the others.
  void Run(const std::string& turn, std::function<void()> handle) {
    {
      absl::MutexLock lock(&mutex_);
      waiting_.Push(turn, std::move(handle));
    }
    asio::post(io_, [this] {
      std::function<void()> next;
      {
        absl::MutexLock lock(&mutex_);
        next = waiting_.Pop();
      }
      next();
    });
  }
  int64_t num_waiting() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(waiting_.size());
  }
  /// Returns when nothing waits or runs. Idempotent.
  void Join() {
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  mutable absl::Mutex mutex_;
  TurnQueue<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  // Not asio::thread_pool: where a thread can't be started, its constructor waits for ever for those that it
  // has.
  std::vector<std::thread> threads_;
};

/// Thread-safe. Owned by the server and by each connection: an answer may be held longer than the server.
struct ServerCore {
  ServerCore(HttpServerOptions server_options, Router server_router, ErrorPage page)
      : options(std::move(server_options)),
        router(std::move(server_router)),
        error_page(std::move(page)),
        io(options.num_threads) {
    for (const HandlerKind kind : router.Kinds()) handlers.try_emplace(kind, options.num_handler_threads);
  }

  const HttpServerOptions options;
  const Router router;
  const ErrorPage error_page;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopped{false};  // nothing is run any more, so nothing may be posted
  // Bytes of bodies that are being received, wait for a handler, or are used by one. Shared, because handlers
  // may outlive this object.
  const std::shared_ptr<std::atomic<int64_t>> pending_body_bytes = std::make_shared<std::atomic<int64_t>>(0);

  std::atomic<int64_t> unsent_bytes{0};  // of all connections

  bool HasTooManyBodies() const { return *pending_body_bytes > options.max_pending_body_bytes; }
  /// The connection that has received most of a body that is not whole yet; null: there is no connection.
  std::shared_ptr<Connection> LargestArriving();

  std::vector<std::shared_ptr<Connection>> Connections();
  /// Of the connections without a request, that which has had none for longest; null: all have one.
  std::shared_ptr<Connection> LongestIdle();
  /// Closes the connection that has most of them.
  void CloseLargest();

  /// Tells whoever counts refusals, and for each status once a minute the log. `why` has nothing of the
  /// client's; may be empty. `limit`: what sets it, or empty.
  void NoteRefusal(int status, const std::string& why, const std::string& limit);
  std::string LimitName(int status) const;

  std::string name;  // of the address, for the log; constant once there are threads

  absl::Mutex mutex;
  std::map<int, OnceAMinute> warn_refused ABSL_GUARDED_BY(mutex);  // by status
  // The open connections.
  absl::flat_hash_map<Connection*, std::weak_ptr<Connection>> connections ABSL_GUARDED_BY(mutex);

  asio::io_context io;
  std::map<HandlerKind, HandlerThreads> handlers;  // constant, one for each kind that the router has
};

}  // namespace kvblend::server
