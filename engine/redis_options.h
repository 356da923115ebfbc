// How to reach the Redis that stored chunks are shared through: an engine's settings, as text and numbers.
#pragma once

#include <cstdint>
#include <string>

namespace kvblend {

struct RedisOptions {
  std::string nodes;          // "host:port[,host:port...]", of one cluster or one server; empty: none
  std::string user;           // of an ACL; empty: the default user
  std::string password;       // that, or the file
  std::string password_file;  // its first line
  bool tls = false;
  std::string tls_ca;           // PEM; empty: the system's authorities
  std::string tls_certificate;  // PEM, with its key: what this client shows
  std::string tls_key;
  std::string tls_server_name;   // what the nodes' certificates are for; empty: their addresses
  double ttl_seconds = 86400;    // since the last hit, about; 0: for ever
  double budget_seconds = 0.05;  // what Redis may cost a prompt
  int64_t max_value_bytes = int64_t{64} << 20;  // chunks with a larger section are not stored
  int32_t connections_per_node = 2;             // for reading
};

}  // namespace kvblend
