// The protocol of Redis (RESP2): commands to bytes, and bytes to replies by hiredis.
//
// What arrives is bounded before memory is taken for it: the elements of an array, its depth, and the bytes
// of a reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

struct redisReader;

namespace kvblend::store::redis {

struct Reply {
  enum class Type : uint8_t { kNil, kStatus, kError, kInteger, kString, kArray };

  Type type = Type::kNil;
  std::string text;             // of a status, an error, a string
  bool at_destination = false;  // a string whose bytes are where RespReader was told to put them
  int64_t integer = 0;
  std::vector<Reply> elements;

  bool is_error() const { return type == Type::kError; }
  bool is_ok() const { return type == Type::kStatus && text == "OK"; }
  /// An error that begins with this word: "MOVED".
  bool is_error(std::string_view code) const;
};

/// A command's bytes: head, then payload, then tail. The payload is borrowed.
struct Wire {
  std::string head;
  absl::Span<const std::byte> payload = {};
  std::string tail = {};
};

Wire FormatCommand(absl::Span<const std::string_view> arguments);
inline Wire FormatCommand(std::initializer_list<std::string_view> arguments) {
  return FormatCommand(absl::MakeConstSpan(arguments.begin(), arguments.size()));
}
/// One argument, behind `before` and in front of `after`, is `payload`, which is not copied.
Wire FormatCommand(std::initializer_list<std::string_view> before, absl::Span<const std::byte> payload,
                   std::initializer_list<std::string_view> after);

inline absl::Span<const std::byte> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Replies out of a stream of bytes. Not thread-safe.
class RespReader {
 public:
  static constexpr int32_t kMaxElements = 1 << 16;  // of all arrays in a reply
  static constexpr int32_t kMaxDepth = 7;           // arrays within arrays

  RespReader();
  ~RespReader();
  RespReader(const RespReader&) = delete;
  RespReader& operator=(const RespReader&) = delete;

  /// What the next reply may be. `destinations`: where its string goes if it has just that size, or the
  /// strings of an array, in order; strings of other sizes are in Reply::text as always. `max_bytes`: on the
  /// wire.
  void ExpectNext(absl::Span<const absl::Span<std::byte>> destinations, int64_t max_bytes);

  /// kDataLoss: that is no RESP, or more than is allowed; the stream is of no use any more.
  absl::Status Feed(absl::Span<const std::byte> bytes);
  /// The next reply, once all of it was fed.
  absl::StatusOr<std::optional<Reply>> Next();

 private:
  struct Functions;
  struct FreeReader {
    void operator()(redisReader* reader) const;
  };

  std::unique_ptr<redisReader, FreeReader> reader_;
  std::vector<absl::Span<std::byte>> destinations_;
  int64_t max_bytes_ = 1 << 16;
  int32_t num_elements_ = 0;  // in the reply that is being read; above kMaxElements: it was refused
};

}  // namespace kvblend::store::redis
