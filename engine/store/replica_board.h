// Where replicas of a server leave something for each other, beside the chunks that they share: each a note of a fixed size,
// and larger parts that the note stands for. What it is, is theirs; here it is bytes. Implemented by engine/store/redis.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kvblend::store {

/// Thread-safe. Calls block for as long as what is across the network may take to show that it does not work; nobody who
/// serves a request should make them.
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

  // Each of these replaces what stood there, and goes when `ttl`, whole seconds and at least one, is over. Parts first: the
  // note is what others find. kResourceExhausted: too large, or there is no memory. kUnavailable: it does not work now.
  virtual absl::Status PutPart(const Place& place, int32_t part, std::string_view bytes,
                               absl::Duration ttl) = 0;
  virtual absl::Status PutNote(const Place& place, std::string_view bytes, absl::Duration ttl) = 0;
  /// From now on as long as if it had been put now. False: the note or a part is gone. kUnavailable.
  virtual absl::StatusOr<bool> Prolong(const Place& place, int32_t num_parts, absl::Duration ttl) = 0;
  /// When it returns OK, nobody finds the note. kUnavailable.
  virtual absl::Status Remove(const Place& place, int32_t num_parts) = 0;

  /// All notes of a space, one's own too, in no order. kUnavailable.
  virtual absl::StatusOr<std::vector<Note>> Notes(std::string_view space, int64_t note_bytes) = 0;
  /// kNotFound. kDataLoss: it is not of that size, for which no memory is taken. kUnavailable.
  virtual absl::StatusOr<std::string> Part(const Place& place, int32_t part, int64_t part_bytes) = 0;
};

}  // namespace kvblend::store
