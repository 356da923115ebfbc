// The stored chunks as an operator sees them.
//
// Thread-safe. Each method acts within one namespace as if nothing else existed; kAllNamespaces is for the
// deployment's owner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/chunk_info.h"

namespace kvblend {

class ChunkCatalog {
 public:
  static constexpr int32_t kMaxPageSize = 1000;

  virtual ~ChunkCatalog() = default;

  /// kNotFound: no such entry. Does not count as a hit, and leaves the order of eviction as it is.
  virtual absl::StatusOr<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const = 0;
  /// Stat of each, in the order of `keys`; quicker for many where they are across the network.
  virtual std::vector<std::optional<ChunkInfo>> StatAll(NamespaceFilter filter,
                                                        absl::Span<const ChunkKey> keys) const = 0;

  /// Of each key whether its entry is in a tier that outlives the process, which looks whether somebody has
  /// removed it; false where there is no such tier. May block as reading does.
  virtual std::vector<bool> AreDurable(NamespaceFilter filter, absl::Span<const ChunkKey> keys) = 0;
  /// How many bytes the entries of a namespace may take in that tier, or in memory where there is none: its
  /// share, its limit (LimitNamespaces), or what the disk has room for, whichever is least.
  virtual int64_t RoomOf(const std::string& tenant_namespace) const = 0;

  /// Entries in order of (namespace, key), `page_size` (1 .. kMaxPageSize) at a time. `page_token` is empty
  /// or the last page's next_page_token. Entries that stay resident throughout are listed exactly once,
  /// whatever comes and goes meanwhile. kInvalidArgument: page size or token.
  virtual absl::StatusOr<ChunkPage> List(NamespaceFilter filter, std::string_view page_token,
                                         int32_t page_size) const = 0;

  /// Erases the entry, pinned or not: no lookup finds it afterwards, and its memory is freed once nobody uses
  /// it. A computation that is under way may insert it again. Returns whether there was one. kUnavailable: a
  /// tier could not erase it, or not say whether it has it: this process does not find it now, but the next
  /// one, or another server, may.
  virtual absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) = 0;
  struct Cleared {
    static constexpr size_t kMaxFailedKeys = 1000;

    int64_t erased = 0;
    int64_t failed = 0;                 // as Erase says with kUnavailable
    std::vector<ChunkKey> failed_keys;  // the first of these
    absl::Status failure;               // of the first
  };
  /// Erases every entry that List lists.
  virtual Cleared Clear(NamespaceFilter filter) = 0;

  /// Keeps an entry from being evicted until Unpin or Erase; idempotent. kNotFound: no such entry.
  /// kResourceExhausted: it would go beyond the limit of pinned bytes. kUnavailable: the disk has it, and
  /// fails. After an error nothing has changed.
  virtual absl::Status Pin(NamespaceFilter filter, const ChunkKey& key) = 0;
  virtual absl::Status Unpin(NamespaceFilter filter, const ChunkKey& key) = 0;

  /// Sets how many bytes (above 0) each of these namespaces may fill in memory, and as many on disk. Replaces
  /// what an earlier call set: namespaces that are not named get their shares back
  /// (EngineOptions::namespace_quotas). A namespace above its limit gives up idle entries at once, and
  /// entries of its own for new ones. Entries that are pinned or in use count and stay; a chunk that does not
  /// fit beside them is refused with kResourceExhausted.
  virtual void LimitNamespaces(const std::map<std::string, int64_t>& bytes) = 0;
};

}  // namespace kvblend
