#include "engine/serve/open_redis.h"

#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"

namespace kvblend {
namespace {

absl::StatusOr<std::string> ReadPassword(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file) return absl::NotFoundError(absl::StrCat("chunk_redis.password_file ", path, " can't be read"));
  std::getline(file, line);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_redis.password_file ", path, ": its first line is empty"));
  }
  return line;
}

absl::StatusOr<absl::Duration> ToDuration(const char* name, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_redis.", name, " is ", seconds, "; allowed: finite and >= 0"));
  }
  return absl::Seconds(seconds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<store::RedisTier>> OpenRedisTier(const RedisOptions& options) {
  store::RedisTier::Options tier;
  KVBLEND_ASSIGN_OR_RETURN(tier.nodes, store::redis::ParseEndpoints(options.nodes));
  tier.user = options.user;
  tier.password = options.password;
  if (!options.password_file.empty()) {
    if (!options.password.empty()) {
      return absl::InvalidArgumentError(
          "chunk_redis: there are a password and a password_file; allowed: one");
    }
    KVBLEND_ASSIGN_OR_RETURN(tier.password, ReadPassword(options.password_file));
  }
  if (options.tls) {
    tier.tls = store::redis::TlsOptions{.ca_path = options.tls_ca,
                                        .certificate_path = options.tls_certificate,
                                        .key_path = options.tls_key,
                                        .server_name = options.tls_server_name};
  } else if (!options.tls_ca.empty() || !options.tls_certificate.empty() || !options.tls_key.empty() ||
             !options.tls_server_name.empty()) {
    return absl::InvalidArgumentError("chunk_redis: there are settings for TLS, but TLS is switched off");
  }
  KVBLEND_ASSIGN_OR_RETURN(tier.ttl, ToDuration("ttl_seconds", options.ttl_seconds));
  KVBLEND_ASSIGN_OR_RETURN(tier.budget, ToDuration("budget_seconds", options.budget_seconds));
  tier.max_value_bytes = options.max_value_bytes;
  tier.connections_per_node = options.connections_per_node;
  return store::RedisTier::Create(std::move(tier));
}

}  // namespace kvblend
