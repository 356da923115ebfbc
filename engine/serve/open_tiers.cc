#include "engine/serve/open_tiers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend {
namespace {

constexpr size_t kMaxPasswordBytes = 4096;
constexpr absl::Duration kWriterPatience = absl::Seconds(3);

absl::StatusOr<std::unique_ptr<store::LowerTier>> OpenDisk(const EngineOptions& options) {
  store::DiskTier::Options disk;
  disk.path = options.chunk_disk_path;
  disk.quota_bytes = options.chunk_disk_bytes;
  disk.namespace_quotas = options.namespace_quotas;
  return store::DiskTier::Open(std::move(disk));
}

template <typename... Parts>
absl::Status BadPasswordFile(const std::string& path, const Parts&... why) {
  return absl::InvalidArgumentError(absl::StrCat("chunk-redis-password-file ", path, ": ", why...));
}

/// Of a file, or of a pipe or device, of which neither the writer nor the end is waited for without end.
absl::StatusOr<std::string> ReadFirstLine(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0)
    return absl::NotFoundError(absl::StrCat("chunk-redis-password-file ", path, " can't be read"));
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat opened;
  if (fstat(file, &opened) != 0) return BadPasswordFile(path, std::strerror(errno));
  const absl::Time end = SteadyNow() + kWriterPatience;
  std::string text;
  while (text.size() <= kMaxPasswordBytes) {
    char block[512];
    const ssize_t count = read(file, block, sizeof block);
    if (count > 0) {
      text.append(block, static_cast<size_t>(count));
      if (const size_t newline = text.find('\n'); newline != text.npos) return text.substr(0, newline);
    } else if (count == 0) {
      // Until somebody has opened a pipe for writing, it seems to be at its end.
      if (!S_ISFIFO(opened.st_mode) || !text.empty() || SteadyNow() >= end) return text;
      absl::SleepFor(absl::Milliseconds(20));
    } else if (errno == EAGAIN) {
      pollfd polled = {.fd = file, .events = POLLIN, .revents = 0};
      poll(&polled, 1, /*timeout=*/-1);
    } else if (errno != EINTR) {
      return BadPasswordFile(path, std::strerror(errno));
    }
  }
  return BadPasswordFile(path, "its first line has more than ", kMaxPasswordBytes,
                         " bytes; allowed: a password");
}

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(std::string line, ReadFirstLine(path));
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) {
    return BadPasswordFile(path, "its first line is empty");
  }
  return line;
}

absl::StatusOr<std::unique_ptr<store::LowerTier>> OpenRedis(const RedisOptions& options) {
  store::RedisTier::Options redis;
  KVBLEND_ASSIGN_OR_RETURN(redis.nodes, store::redis::ParseEndpoints(options.nodes));
  redis.user = options.user;
  redis.password = options.password;
  if (!options.password_file.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(redis.password, ReadPassword(options.password_file));
  }
  if (options.tls) {
    redis.tls = store::redis::TlsOptions{.ca_path = options.tls_ca,
                                         .certificate_path = options.tls_certificate,
                                         .key_path = options.tls_key,
                                         .server_name = options.tls_server_name};
  }
  redis.ttl = absl::Seconds(options.ttl_seconds);
  redis.budget = absl::Seconds(options.budget_seconds);
  redis.max_value_bytes = options.max_value_bytes;
  redis.connections_per_node = options.connections_per_node;
  return store::RedisTier::Create(std::move(redis));
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<store::LowerTier>>> OpenLowerTiers(const EngineOptions& options) {
  std::vector<std::unique_ptr<store::LowerTier>> tiers;
  const auto add = [&](absl::StatusOr<std::unique_ptr<store::LowerTier>> tier) {
    if (tier.ok()) tiers.push_back(*std::move(tier));
    return tier.status();
  };
  if (!options.chunk_disk_path.empty()) KVBLEND_RETURN_IF_ERROR(add(OpenDisk(options)));
  if (!options.chunk_redis.nodes.empty()) KVBLEND_RETURN_IF_ERROR(add(OpenRedis(options.chunk_redis)));
  return tiers;
}

}  // namespace kvblend
