// What one rendering may cost: steps, and bytes of values that it makes. A template comes from a file, so it
// may ask for anything.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace kvblend::text::jinja {

struct RenderLimits {
  int64_t steps = 200'000;            // of the interpreter
  int64_t bytes = int64_t{16} << 20;  // of strings and lists made on the way
  size_t output_bytes = size_t{1} << 20;
};

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr size_t kMaxStringBytes = size_t{256} << 10;
inline constexpr size_t kMaxNameBytes = 256;  // of variables and attributes, which every use looks up
inline constexpr size_t kMaxListItems = size_t{1} << 16;
inline constexpr int kMaxNesting = 50;        // of brackets in brackets, and of blocks in blocks
inline constexpr int kMaxSyntaxDepth = 150;   // of the tree of an expression: "a + b + c" is two deep
inline constexpr int kMaxRunningDepth = 300;  // the same while running, through macros
inline constexpr int kMaxValueDepth = 64;     // lists in lists

/// One thread's. All errors are kResourceExhausted.
class Budget {
 public:
  explicit Budget(const RenderLimits& limits)
      : limits_(limits), steps_left_(limits.steps), bytes_left_(limits.bytes) {}

  absl::Status Spend(int64_t steps);
  /// For a string or list of so many bytes; those of more than kMaxStringBytes are refused by CheckString.
  absl::Status Allocate(size_t bytes);
  /// Before a string of so many bytes is made.
  absl::Status CheckString(size_t bytes);
  /// Before a list of so many items is made.
  absl::Status CheckList(size_t items);
  /// Before a text of so many bytes is looked through from end to end.
  absl::Status CheckScan(size_t bytes) { return Spend(static_cast<int64_t>(bytes / 256)); }
  /// Before `needle` is searched for in all of `haystack`.
  absl::Status CheckSearch(size_t haystack, size_t needle);

  const RenderLimits& limits() const { return limits_; }

 private:
  RenderLimits limits_;
  int64_t steps_left_;
  int64_t bytes_left_;
};

}  // namespace kvblend::text::jinja
