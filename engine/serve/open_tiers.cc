#include "engine/serve/open_tiers.h"

#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend {
namespace {

absl::StatusOr<std::unique_ptr<store::LowerTier>> OpenDisk(const EngineOptions& options) {
  store::DiskTier::Options disk;
  disk.path = options.chunk_disk_path;
  disk.quota_bytes = options.chunk_disk_bytes;
  disk.namespace_quotas = options.namespace_quotas;
  return store::DiskTier::Open(std::move(disk));
}

absl::StatusOr<std::unique_ptr<store::LowerTier>> OpenRedis(const RedisOptions& options) {
  store::RedisTier::Options redis;
  KVBLEND_ASSIGN_OR_RETURN(redis.nodes, store::redis::ParseEndpoints(options.nodes));
  redis.user = options.user;
  redis.password = options.password;
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
    if (!tier.ok()) return tier.status();
    tiers.push_back(*std::move(tier));
    return absl::OkStatus();
  };
  if (!options.chunk_disk_path.empty()) KVBLEND_RETURN_IF_ERROR(add(OpenDisk(options)));
  if (!options.chunk_redis.nodes.empty()) KVBLEND_RETURN_IF_ERROR(add(OpenRedis(options.chunk_redis)));
  return tiers;
}

}  // namespace kvblend
