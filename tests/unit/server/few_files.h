// A process that may hardly open any files, and what it then writes into its log.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "server/files/descriptor.h"
#include "spdlog/sinks/ringbuffer_sink.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {

/// As long as it lives, this process may open `more` files beside those that are open.
class FewFiles {
 public:
  explicit FewFiles(rlim_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(next, 0);
    close(next);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next) + more;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewFiles(const FewFiles&) = delete;
  FewFiles& operator=(const FewFiles&) = delete;

 private:
  rlimit before_;
};

/// Clients that have their descriptors before there are few: more than a server that has room for one or two
/// can accept. (The system gives accept() a descriptor before there is a connection to be accepted, so what
/// is free may be one more than it seems.)
class EarlyClients {
 public:
  EarlyClients() {
    for (Descriptor& one : sockets_) one = Descriptor(socket(AF_INET, SOCK_STREAM, 0));
  }
  void Connect(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (const Descriptor& one : sockets_) {
      EXPECT_EQ(connect(one.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
  }
  /// Sends `request` from each, and expects that all are answered with something that begins with `answer`.
  void Expect(const std::string& request, const std::string& answer) {
    for (const Descriptor& one : sockets_) {
      send(one.get(), request.data(), request.size(), MSG_NOSIGNAL);
      std::string received(answer.size(), ' ');
      recv(one.get(), received.data(), received.size(), MSG_WAITALL);
      EXPECT_EQ(received, answer);
    }
  }

 private:
  std::array<Descriptor, 5> sockets_;
};

/// As long as it lives, the log goes here. To be made before the threads that write to it, and to outlive
/// them.
class HeardLog {
 public:
  HeardLog() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("heard", sink_)); }
  ~HeardLog() { spdlog::set_default_logger(before_); }
  HeardLog(const HeardLog&) = delete;
  HeardLog& operator=(const HeardLog&) = delete;

  /// How many of its lines have `text` in them.
  int Count(const std::string& text) const {
    int count = 0;
    for (const std::string& line : sink_->last_formatted()) count += line.find(text) != std::string::npos;
    return count;
  }

 private:
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(100);
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

}  // namespace kvblend::server
