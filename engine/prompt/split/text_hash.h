// Hashes of parts of a text in the time of a few steps each, whatever their length: polynomials modulo 2^61 -
// 1 (Karp and Rabin, "Efficient randomized pattern-matching algorithms", IBM Journal 1987). The base is drawn
// at random, so that nobody can make texts whose hashes collide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvblend::prompt {

/// Immutable; thread-safe. `text` must outlive it. Takes an eighth of the text's bytes of memory.
class TextHash {
 public:
  TextHash(std::string_view text, uint64_t base);

  /// The hash of the bytes [begin, end) of the text. REQUIRES: begin <= end <= size of the text
  uint64_t Of(size_t begin, size_t end) const;

  /// A base from the system's random numbers.
  static uint64_t RandomBase();
  /// x * y, and x to the power of n.
  static uint64_t Times(uint64_t x, uint64_t y);
  static uint64_t Power(uint64_t x, uint64_t n);
  /// The hash of a text and a byte behind it.
  static uint64_t Append(uint64_t hash, uint64_t base, char byte);

  static constexpr uint64_t kModulus = (uint64_t{1} << 61) - 1;

 private:
  static constexpr size_t kStep = 64;
  uint64_t Prefix(size_t end) const;

  const std::string_view text_;
  const uint64_t base_;
  std::vector<uint64_t> prefixes_;  // of kStep * i bytes
};

/// The hash of every run of `window` bytes, from the first one on, each in one step.
class RollingHash {
 public:
  /// REQUIRES: text.size() >= window
  RollingHash(std::string_view text, size_t window, uint64_t base);

  uint64_t value() const { return value_; }
  size_t begin() const { return begin_; }
  /// Goes on to the next run; false at the end.
  bool Next();

 private:
  const std::string_view text_;
  const size_t window_;
  const uint64_t base_, leaving_;
  size_t begin_ = 0;
  uint64_t value_ = 0;
};

}  // namespace kvblend::prompt
