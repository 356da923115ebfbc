// A board on which servers that share chunks (replicas) leave messages for each other: each server a note of
// a fixed size, and larger parts that belong to the note. To the board these are just bytes. Implemented by
// engine/store/redis.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvblend::store {

/// Thread-safe. Calls may block until the network times out, so threads that serve requests should not make
/// them.
class ReplicaBoard {
 public:
  /// Replicas of one space find each other. Both are lower-case hexadecimal digits.
  struct Place {
    std::string space;
    std::string replica;
  };
  struct Note {
    std::string replica;
    /// kDataLoss: something else stands in its place. kUnavailable: its node does not work now.
    absl::StatusOr<std::string> bytes;
  };
  static constexpr int32_t kMaxNotes = 64;  // of a space; more replicas do not find each other

  virtual ~ReplicaBoard() = default;

  // Each of these replaces what was there before, and expires after `ttl`, in whole seconds and at least one.
  // Write the parts first, because others find them by the note. kResourceExhausted: too large, or there is
  // no memory. kUnavailable: it does not work now.
  virtual absl::Status PutPart(const Place& place, int32_t part, std::string_view bytes,
                               absl::Duration ttl) = 0;
  virtual absl::Status PutNote(const Place& place, std::string_view bytes, absl::Duration ttl) = 0;
  /// From now on as long as if it had been put now. False: the note or a part is gone. kUnavailable.
  virtual absl::StatusOr<bool> Prolong(const Place& place, int32_t num_parts, absl::Duration ttl) = 0;
  /// Removes the note: when it returns OK, no other server finds it. kUnavailable.
  virtual absl::Status Remove(const Place& place, int32_t num_parts) = 0;

  /// All notes of a space, including one's own, in no particular order. kUnavailable.
  virtual absl::StatusOr<std::vector<Note>> Notes(std::string_view space, int64_t note_bytes) = 0;
  /// kNotFound. kDataLoss: it is not of that size, for which no memory is taken. kUnavailable.
  virtual absl::StatusOr<std::string> Part(const Place& place, int32_t part, int64_t part_bytes) = 0;
};

}  // namespace kvblend::store
