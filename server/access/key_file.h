// API keys, and the file that lists them: one JSON object per line.
//
//   {"tenant": "acme", "key_sha256": "9f86d0...", "namespace": "acme", "requests_per_minute": 600}
//
// The file holds hashes only. Keys are 256 random bits, so a plain SHA-256 is as good as a slow hash.
// Stateless, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/request.h"

namespace kvblend::server {

using KeyHash = std::array<unsigned char, 32>;

/// The tenant that a key belongs to, and what it may do. A limit of 0 means no limit.
struct Tenant {
  std::string name = {};
  std::string chunk_namespace = {};  // of all its chunks
  bool admin = false;                // may steer what the server learns
  int64_t requests_per_minute = 0;
  int64_t computed_tokens_per_minute =
      0;  // of prompts, what was not reused; of answers, all; of chunks, those computed
  int64_t concurrent_requests = 0;
  int64_t store_bytes = 0;                    // what its chunks may take in memory, and on disk
  Priority priority = Priority::kNormal;      // of requests that do not say theirs
  Priority max_priority = Priority::kNormal;  // the most that they may say; not below `priority`
  std::vector<std::string> read =
      {};  // namespaces of others whose chunks it may use, and list, and not change

  bool operator==(const Tenant&) const = default;
};

struct KeyEntry {
  KeyHash hash;
  Tenant tenant;
};

/// Whether `a` comes before `b`.
bool IsAbove(Priority a, Priority b);

/// SHA-256.
KeyHash HashKey(std::string_view key);

/// Reads a whole file. Lines that are empty or begin with '#' are skipped. kInvalidArgument naming the line:
/// fields that are unknown or of the wrong type, a key twice, a tenant with two settings, a namespace of two
/// tenants, no key at all.
absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(std::string_view text);

/// A new key, from the system's random numbers, and the line for the file. kInvalidArgument for names that
/// are too long.
struct NewKey {
  std::string key;
  std::string line;
};
absl::StatusOr<NewKey> MakeKey(const Tenant& tenant);

}  // namespace kvblend::server
